"""SPMD: one script and one virtual device over all the hardware; tensors are sharded over a mesh. See README.md."""

from torch_xla.distributed.spmd import _dtensor, _fully_shard, xla_sharded_tensor
from torch_xla.distributed.spmd.api import xla_distribute_module, xla_distribute_tensor
from torch_xla.distributed.spmd.xla_sharding import (
    EinsumLinear,
    HybridMesh,
    MarkShardingFunction,
    Mesh,
    PartitionSpec,
    ShardingSpec,
    ShardingType,
    XLAPatchedLinear,
    XLAShard,
    XLAShardedTensor,
    annotate_custom_sharding,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    get_1d_mesh,
    get_global_mesh,
    get_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    set_global_mesh,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

xla_sharded_tensor.register_sharded_properties()
_dtensor.register_dtensor_methods()
_fully_shard.patch_fully_shard()

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "get_sharding",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]
