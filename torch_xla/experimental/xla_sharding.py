"""SPMD under its name in PyTorch/XLA 2.0 and 2.1; see torch_xla.distributed.spmd."""

from torch_xla.distributed.spmd.xla_sharding import *  # noqa: F403
from torch_xla.distributed.spmd.xla_sharding import __all__ as __all__
