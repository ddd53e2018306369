"""``xs``: says how tensors lie on the devices of a mesh. XLA splits the work accordingly (SPMD, GSPMD).

A tensor that is marked stays what it is: its shape, its values and its dtype are those of the whole, and any op takes
it. What is written to it in place is laid out as it was, so marked parameters stay split while they are trained.
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
    """Splits an xla tensor over the axes of a mesh, in place, and returns it.

    A value that exists is moved at once; one that is still recorded is computed so. Marking a parameter moves its value
    and leaves autograd alone; marking an activation tells XLA how to split the ops around it. Its gradient is laid
    out as XLA likes (see mark_sharding_with_gradients).

    Args:
      t: a tensor on ``xla:0``, of any dtype. Or a parameter or buffer on meta, or a parameter on the CPU: it will lie
        so when its module gets room on xla (``module.to_empty(device="xla")``) or moves there, and no device ever has
        the whole of it.
      mesh: the devices.
      partition_spec: for each dimension the axis of the mesh that it is split over, by name or number, a tuple of
        several, or None: every device has all of it.

    A dimension need not be a multiple of the number of its parts: the last devices then have less of it, or nothing.

    Raises MeshError, a ValueError, for a spec that does not fit the tensor or the mesh; RuntimeError without SPMD, or
    for an expanded tensor.
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
    """The tensor itself: none is wrapped here."""
    return t


def wrap_if_sharded(x: Any) -> Any:
    """``x`` itself, whatever it is: a tensor with a sharding is an XLAShardedTensor (see there) as it is."""
    return x


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor on the CPU; the tensor itself is on every device again. Waits for its value."""
    if is_on_mesh(t):
        with torch.no_grad():
            _apply_sharding(t, spmd.replicated_sharding())
    return t.cpu()


class _MarkShardingWithGrad(torch.autograd.Function):
    """A tensor laid out, and its gradient laid out in the same way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return capture_modes.register_tensor(recorder.bindings().resharded(t, number))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return capture_modes.register_tensor(recorder.bindings().resharded(grads[0], ctx.number)), None


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
    """A tensor of ``t``'s values that is split over the mesh, and whose gradient is split in the same way.

    Not in place, and differentiable. Arguments and errors are those of mark_sharding.
    """
    sharding = validated_sharding("mark_sharding_with_gradients", t, mesh, partition_spec)
    number = sharding_ids.sharding_id(sharding, t.dim())
    marked: torch.Tensor = _MarkShardingWithGrad.apply(t, number)  # type: ignore[no-untyped-call]
    return marked


class MarkShardingFunction(torch.autograd.Function):
    """mark_sharding_with_gradients as ``MarkShardingFunction.apply(t, mesh, partition_spec)``."""

    @staticmethod
    def forward(ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
        """The tensor's values, split over the mesh."""
        sharding = validated_sharding("MarkShardingFunction", torch_tensor, mesh, partition_spec)
        return _MarkShardingWithGrad.forward(ctx, torch_tensor, sharding_ids.sharding_id(sharding, torch_tensor.dim()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient, split in the same way."""
        return *_MarkShardingWithGrad.backward(ctx, *grads), None


class _ShardAs(torch.autograd.Function):
    """Two tensors that XLA lays out in the same way, and their gradients likewise."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_xla.shard_alike([a, b]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.torch_xla.shard_alike(list(grads)))


def shard_as(a: A, b: B) -> tuple[A, B]:
    """Copies of two pytrees in which each tensor of the one lies as its counterpart in the other, whichever way.

    Differentiable. What is no xla tensor stays as it is. Raises ValueError where the trees, or two shapes, differ.
    """
    mine, layout = jax.tree.flatten(a)
    theirs, other = jax.tree.flatten(b)
    if str(layout) != str(other):
        raise ValueError(f"shard_as: the trees differ: {layout} and {other}")
    pairs = [_shard_leaves_as(x, y) for x, y in zip(mine, theirs, strict=True)]
    return jax.tree.unflatten(layout, [x for x, _ in pairs]), jax.tree.unflatten(other, [y for _, y in pairs])


def _shard_leaves_as(x: Any, y: Any) -> tuple[Any, Any]:
    if not all(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in (x, y)):
        return x, y
    if x.shape != y.shape:
        raise ValueError(f"shard_as: tensors of shapes {list(x.shape)} and {list(y.shape)} cannot lie in the same way")
    return _ShardAs.apply(x, y)  # type: ignore[no-untyped-call, no-any-return]


@dataclass
class ShardingSpec:
    """How inputs of one rank are to lie, as MpDeviceLoader(input_sharding=...) takes it.

    With ``minibatch`` each process gives a part of its own, and the tensor is all of them, in order of processes, along
    the dimensions that are split; else each process gives the same whole tensor.
    """

    mesh: Mesh
    partition_spec: tuple[Any, ...]
    minibatch: bool = False

    def xla_spec(self, t: torch.Tensor) -> OpSharding | None:
        """How the tensor is to lie; None where the spec is for another number of dimensions."""
        return self.mesh.get_op_sharding(self.partition_spec) if self.can_apply(t) else None

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether the tensor has the number of dimensions that the spec is for."""
        return t.dim() == len(self.partition_spec)

    def send(self, t: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A CPU tensor on the device, split on the way: no device ever has all of it.

        One of another rank is on every device. With ``minibatch`` and several processes that is a ValueError, as is a
        size that is no multiple of the number of parts: what each of them has is not the whole.
        """
        if self.minibatch and replicas.process_count() > 1:
            if self._layout(tuple(t.shape)) is None:
                raise ValueError(
                    f"input_sharding: a part of shape {list(t.shape)} cannot be split as {self.partition_spec} says, "
                    "and with minibatch=True no process has the whole; give tensors of this rank, and drop_last=True"
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
        """Marks the tensor."""
        mark_sharding(t, self.mesh, self.partition_spec)
