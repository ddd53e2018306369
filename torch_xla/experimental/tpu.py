"""Queries of TPUs under their name in PyTorch/XLA 2.0; see torch_xla._internal.tpu."""

from torch_xla._internal.tpu import get_tpu_env, num_available_chips, num_available_devices

__all__ = ["get_tpu_env", "num_available_chips", "num_available_devices"]
