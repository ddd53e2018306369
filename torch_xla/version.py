"""The version under upstream's name."""

from torch_xla._version import __version__

__all__ = ["__version__"]
