"""``xs``: mark the sharding of tensors over a mesh; XLA partitions the computation accordingly (SPMD, GSPMD).

A marked tensor keeps its global shape, values and dtype, and any op accepts it. An in-place write preserves its
sharding, so marked parameters stay sharded during training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import torch
from jax.sharding import NamedSharding, Sharding

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes, sharding_ids
from torch_xla._engine.capture import capture_modes
from torch_xla._engine.execution import transfers
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import spmd
from torch_xla._engine.torch_patches import module_to
from torch_xla.distributed.spmd._einsum_linear import (
    EinsumLinear,
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from torch_xla.distributed.spmd._manual_sharding import disable_manual_sharding, enable_manual_sharding
from torch_xla.distributed.spmd._mesh import (
    HybridMesh,
    Mesh,
    OpSharding,
    PartitionSpec,
    get_1d_mesh,
    get_global_mesh,
    is_on_mesh,
    set_global_mesh,
    validated_sharding,
)
from torch_xla.distributed.spmd._op_sharding import ShardingType
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShard,
    XLAShardedTensor,
    annotate_custom_sharding,
    get_sharding,
    wrap_as_sharded_tensor,
)

__all__ = [
    "EinsumLinear", "HybridMesh", "MarkShardingFunction", "Mesh", "PartitionSpec", "ShardingSpec", "ShardingType",
    "XLAPatchedLinear", "XLAShard", "XLAShardedTensor", "annotate_custom_sharding",
    "apply_backward_optimization_barrier", "apply_xla_patch_to_nn_linear", "clear_sharding",
    "disable_manual_sharding", "enable_manual_sharding", "get_1d_mesh",
    "get_global_mesh", "get_sharding", "mark_sharding", "mark_sharding_with_gradients", "set_global_mesh", "shard_as",
    "unwrap_sharded_tensor", "wrap_as_sharded_tensor", "wrap_if_sharded", "xla_patched_nn_linear_forward",
]  # fmt: skip

A = TypeVar("A")
B = TypeVar("B")


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
    """Shard an xla tensor over the axes of a mesh, in place, and return it.

    An existing value is resharded immediately; a pending one is computed with this sharding. Marking a parameter moves
    its value and does not affect autograd; marking an activation determines how XLA partitions the surrounding
    operations. XLA chooses the sharding of its gradient (see
    [mark_sharding_with_gradients][torch_xla.distributed.spmd.mark_sharding_with_gradients]).

    Args:
      t: a tensor on ``xla:0``, of any dtype. Or a parameter or buffer on meta, or a parameter on the CPU: it gets the
        sharding when its module is allocated on xla (``module.to_empty(device="xla")``) or moved there, and no device
        ever holds the full tensor.
      mesh: the devices.
      partition_spec: for each dimension the mesh axis over which it is sharded (name or number), a tuple of axes, or
        None (not sharded). A dimension need not be a multiple of its partition count: the last devices then hold fewer
        elements, or none.

    Raises:
      MeshError (a ValueError): the spec does not match the tensor or the mesh.
      RuntimeError: SPMD is not enabled, or the tensor is expanded.

    Examples:
      With ``CPU_NUM_DEVICES=4``; shard a batch over two devices, and a weight over the other axis:

      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
      >>> x = xs.mark_sharding(torch.ones(8, 16, device="xla"), mesh, ("data", None))
      >>> weight = xs.mark_sharding(torch.ones(4, 16, device="xla"), mesh, ("model", None))
      >>> y = x @ weight.T
      >>> torch_xla.sync()
      >>> list(x.local_shards[0].data.shape), list(weight.local_shards[0].data.shape)
      ([4, 16], [2, 16])
    """
    later = t.is_meta or (t.device.type == "cpu" and isinstance(t, torch.nn.Parameter))
    sharding = validated_sharding("mark_sharding", t, mesh, partition_spec, later)
    if later:
        module_to.shard_when_moved(t, sharding)
        return t
    with torch.no_grad():
        _apply_sharding(t, sharding)
    return t


def _apply_sharding(t: torch.Tensor, sharding: Sharding) -> None:
    if not capture_modes.mark_sharding_in_capture(t, sharding_ids.sharding_id(sharding, t.dim())):
        recorder.bindings().with_execution_lock(0, _apply_sharding_in_place, t, sharding)


def _apply_sharding_in_place(t: torch.Tensor, sharding: Sharding) -> None:
    module, number = recorder.bindings(), sharding_ids.sharding_id(sharding, t.dim())
    (node,) = module.nodes_of([t])
    if node.sharding == number:
        return
    if node.pending or module.is_view(t):
        module.reshard(t, number)
    else:
        module.reshard(t, number, spmd.reshard(node.buffer, sharding, node.shape))


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself; tensors are never wrapped.

    Args:
      t: a tensor.
    """
    return t


def wrap_if_sharded(x: Any) -> Any:
    """Return ``x`` itself: a tensor with a sharding is an instance of XLAShardedTensor.

    Args:
      x: an object.
    """
    return x


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Replicate the tensor and return a copy of it on the CPU. Waits for its value.

    Args:
      t: an xla tensor.
    """
    if is_on_mesh(t):
        with torch.no_grad():
            _apply_sharding(t, spmd.replicated_sharding())
    return t.cpu()


class _MarkShardingWithGrad(torch.autograd.Function):
    """Shard a tensor, and its gradient in the same way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return capture_modes.register_tensor(recorder.bindings().resharded(t, number))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return capture_modes.register_tensor(recorder.bindings().resharded(grads[0], ctx.number)), None


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
    """Return a tensor of ``t``'s values that is sharded over the mesh, and whose gradient is sharded in the same way.

    Not in place; differentiable. Arguments and errors are those of
    [mark_sharding][torch_xla.distributed.spmd.mark_sharding].

    Args:
      t: an xla tensor.
      mesh: the Mesh.
      partition_spec: an axis (name or number), a tuple of axes or None for each dimension of the tensor.
    """
    sharding = validated_sharding("mark_sharding_with_gradients", t, mesh, partition_spec)
    number = sharding_ids.sharding_id(sharding, t.dim())
    marked: torch.Tensor = _MarkShardingWithGrad.apply(t, number)  # type: ignore[no-untyped-call]
    return marked


class MarkShardingFunction(torch.autograd.Function):
    """mark_sharding_with_gradients as an autograd Function: ``MarkShardingFunction.apply(t, mesh, partition_spec)``."""

    @staticmethod
    def forward(ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
        """Return the tensor's values, sharded over the mesh.

        Args:
          ctx: context of autograd.
          torch_tensor: an xla tensor.
          mesh: the Mesh.
          partition_spec: an axis (name or number), a tuple of axes or None for each dimension of the tensor.
        """
        sharding = validated_sharding("MarkShardingFunction", torch_tensor, mesh, partition_spec)
        return _MarkShardingWithGrad.forward(ctx, torch_tensor, sharding_ids.sharding_id(sharding, torch_tensor.dim()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient, sharded in the same way.

        Args:
          ctx: context of autograd.
          grads: the gradient of the output.
        """
        return *_MarkShardingWithGrad.backward(ctx, *grads), None


class _ShardAs(torch.autograd.Function):
    """Constrain two tensors, and their gradients, to the same sharding."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_xla.shard_alike([a, b]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_xla.shard_alike(list(grads)))


def shard_as(a: A, b: B) -> tuple[A, B]:
    """Return copies of two pytrees whose corresponding tensors have the same sharding, which XLA chooses.

    Differentiable. Leaves that are not xla tensors are unchanged.

    Args:
      a, b: pytrees of the same structure, with tensors of equal shapes.

    Raises:
      ValueError: the structures, or two shapes, differ.
    """
    mine, layout = jax.tree.flatten(a)
    theirs, other = jax.tree.flatten(b)
    if str(layout) != str(other):
        raise ValueError(f"shard_as: the pytree structures differ: {layout} and {other}")
    pairs = [_shard_leaves_as(x, y) for x, y in zip(mine, theirs, strict=True)]
    return jax.tree.unflatten(layout, [x for x, _ in pairs]), jax.tree.unflatten(other, [y for _, y in pairs])


def _shard_leaves_as(x: Any, y: Any) -> tuple[Any, Any]:
    if not all(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in (x, y)):
        return x, y
    if x.shape != y.shape:
        raise ValueError(f"shard_as: shapes {list(x.shape)} and {list(y.shape)} cannot have the same sharding")
    return _ShardAs.apply(x, y)  # type: ignore[no-untyped-call, no-any-return]


@dataclass
class ShardingSpec:
    """Sharding of inputs of one rank, for ``MpDeviceLoader(input_sharding=...)``.

    With ``minibatch`` each process provides a different part of the batch, and the tensor is their concatenation in
    order of processes, along the sharded dimensions; otherwise each process provides the same global tensor.

    Args:
      mesh: the devices.
      partition_spec: the mesh axis of each dimension, as for
        [mark_sharding][torch_xla.distributed.spmd.mark_sharding].
      minibatch: each process provides a different part of the batch.

    Examples:
      With ``CPU_NUM_DEVICES=4``; shard batches while they are loaded:

      >>> import torch
      >>> import torch_xla.distributed.parallel_loader as pl
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> spec = xs.ShardingSpec(xs.get_1d_mesh("data"), ("data", None))
      >>> loader = pl.MpDeviceLoader([torch.ones(8, 2)], "xla", input_sharding=spec)
      >>> [list(batch.local_shards[0].data.shape) for batch in loader]
      [[2, 2]]
    """

    mesh: Mesh
    partition_spec: tuple[Any, ...]
    minibatch: bool = False

    def xla_spec(self, t: torch.Tensor) -> OpSharding | None:
        """Return the tensor's sharding; None if the spec is for another number of dimensions.

        Args:
          t: a tensor.
        """
        return self.mesh.get_op_sharding(self.partition_spec) if self.can_apply(t) else None

    def can_apply(self, t: torch.Tensor) -> bool:
        """Return whether the tensor has the number of dimensions of the spec.

        Args:
          t: a tensor.
        """
        return t.dim() == len(self.partition_spec)

    def send(self, t: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Move a CPU tensor to the device, sharded during the transfer: no device ever holds the full tensor.

        A tensor of another rank is replicated. With ``minibatch`` and several processes that raises ValueError, as does
        a size that is not a multiple of the partition count: no process has the global values.

        Args:
          t: a CPU tensor.
          device: the xla device.
        """
        if self.minibatch and replicas.process_count() > 1:
            if self._layout(tuple(t.shape)) is None:
                raise ValueError(
                    f"input_sharding: cannot shard a part of shape {list(t.shape)} by {self.partition_spec}: with "
                    "minibatch=True no process has the global tensor; pass tensors of this rank, and drop_last=True"
                )
            with spmd.upload_sharding(self._layout, parts=True):
                array = transfers.upload(t.contiguous(), 0)
            whole: torch.Tensor = recorder.bindings().make_tensor(array, dtypes.TO_CODE[t.dtype], 0)
            return whole
        with spmd.upload_sharding(self._layout):
            return t.to(device)

    def _layout(self, shape: tuple[int, ...]) -> NamedSharding | None:
        if len(shape) != len(self.partition_spec):
            return None
        sharding = self.mesh.sharding(self.partition_spec, len(shape))
        if not self.minibatch or replicas.process_count() == 1:
            return sharding
        mine = (
            max(1, count // replicas.process_count()) for count in sharding_ids.partition_counts(sharding, len(shape))
        )
        return sharding if all(size % count == 0 for size, count in zip(shape, mine, strict=True)) else None

    def apply(self, t: torch.Tensor) -> None:
        """Mark the sharding of the tensor.

        Args:
          t: an xla tensor.
        """
        mark_sharding(t, self.mesh, self.partition_spec)
