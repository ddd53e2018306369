"""One script, one device, all the hardware: tensors spread over a mesh of devices. See README.md."""

from torch_xla.distributed.spmd.xla_sharding import *  # noqa: F403
from torch_xla.distributed.spmd.xla_sharding import __all__  # noqa: F401
