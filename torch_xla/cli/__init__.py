"""The command line: ``torch-xla COMMAND``. Imports torch and jax only for the commands that need them."""

from torch_xla.cli.entry import main

__all__ = ["main"]
