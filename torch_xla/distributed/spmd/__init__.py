"""One script, one device, all the hardware: tensors spread over a mesh of devices. See README.md."""

from torch_xla.distributed.spmd.api import xla_distribute_module, xla_distribute_tensor
from torch_xla.distributed.spmd.xla_sharding import (
    HybridMesh,
    Mesh,
    PartitionSpec,
    ShardingSpec,
    clear_sharding,
    get_1d_mesh,
    get_global_mesh,
    get_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    set_global_mesh,
)

__all__ = [
    "HybridMesh",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "get_sharding",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
