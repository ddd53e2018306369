"""``init_method="pjrt://"`` of PyTorch/XLA 1.13: ``import torch_xla`` registers it, and importing this does nothing."""

from torch_xla.distributed.xla_backend import new_xla_process_group

__all__ = ["new_xla_process_group"]
