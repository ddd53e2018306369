"""Internal names of upstream that libraries import."""

from torch_xla._internal import tpu

__all__ = ["tpu"]
