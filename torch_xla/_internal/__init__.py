"""Internal names of upstream that libraries and scripts import."""

from torch_xla._internal import tpu, xla_ops

__all__ = ["tpu", "xla_ops"]
