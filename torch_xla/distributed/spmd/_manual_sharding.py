"""Manual sharding: regions of a program in which each device computes with its shard of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine.base import sharding_ids, user_frames
from torch_xla._engine.compat import sharding as orders
from torch_xla.distributed.spmd._mesh import Mesh, get_global_mesh, validated_sharding


class _ManualBoundary(torch.autograd.Function):
    """Move a tensor into a manual region, or out of one; its gradient moves the other way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, enters: bool, number: int, shape: Sequence[int]) -> torch.Tensor:
        ctx.back = not enters, number, list(t.shape)
        return _cross_boundary(t, enters, number, list(shape), transposed=False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        enters, number, shape = ctx.back
        return _cross_boundary(grads[0], enters, number, shape, transposed=True), None, None, None


def _cross_boundary(t: torch.Tensor, enters: bool, number: int, shape: list[int], transposed: bool) -> torch.Tensor:
    """Enter or leave a manual region.

    ``transposed``: as the gradient of the opposite boundary: shards held by several devices are summed, or go to the
    first of these devices.
    """
    change = torch.ops.torch_xla.to_manual if enters else torch.ops.torch_xla.from_manual
    changed: torch.Tensor = change(t, number, shape, transposed)
    return changed


def enable_manual_sharding(t: torch.Tensor, partition_spec: Sequence[Any], *, mesh: Mesh | None = None) -> torch.Tensor:
    """Enter a manual region: return this device's shard of the tensor, with the shape of one shard.

    Operations on it run on each device separately, without communication, until disable_manual_sharding combines the
    shards into one tensor. Tensors from outside the region are replicated; if one requires a gradient, move it into the
    region, too: ``enable_manual_sharding(weight, (None, None))``. Differentiable. No tensor of a region may live past
    the next step barrier.

    Args:
      t: an xla tensor.
      partition_spec: as for [mark_sharding][torch_xla.distributed.spmd.mark_sharding]; every dimension must be a
        multiple of its partition count.
      mesh: the devices, in order of their numbers; default: the global mesh.

    Raises:
      ValueError: there is no mesh, its devices are in another order, or a dimension is not divisible.
      Other errors of [mark_sharding][torch_xla.distributed.spmd.mark_sharding].

    Examples:
      With ``CPU_NUM_DEVICES=4``; each device sorts its rows:

      >>> import torch
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.get_1d_mesh("data")
      >>> x = xs.mark_sharding(torch.arange(8.0, device="xla").flip(0), mesh, ("data",))
      >>> shard = xs.enable_manual_sharding(x, ("data",), mesh=mesh)
      >>> list(shard.shape)
      [2]
      >>> y = xs.disable_manual_sharding(shard.sort().values, ("data",), (8,), mesh=mesh)
      >>> del shard  # no tensor of a region may live past the next step barrier
      >>> y.tolist()
      [6.0, 7.0, 4.0, 5.0, 2.0, 3.0, 0.0, 1.0]
    """
    number, parts = _validate("enable_manual_sharding", t, mesh, partition_spec, t.shape)
    shape = [size // count for size, count in zip(t.shape, parts, strict=True)]
    changed: torch.Tensor = _ManualBoundary.apply(t, True, number, shape)  # type: ignore[no-untyped-call]
    return changed


def disable_manual_sharding(
    t: torch.Tensor, partition_spec: Sequence[Any], full_shape: Sequence[int], *, mesh: Mesh | None = None
) -> torch.Tensor:
    """Leave a manual region: combine the devices' shards into a tensor of ``full_shape``.

    See [enable_manual_sharding][torch_xla.distributed.spmd.enable_manual_sharding].
    If several devices hold the same shard, the first one's is used.

    Args:
      t: this device's shard.
      partition_spec: as for mark_sharding.
      full_shape: shape of the result.
      mesh: the devices, in order of their numbers; default: the global mesh.

    Raises:
      ValueError: the shape of the shard does not match ``full_shape``.

    Examples:
      >>> import torch
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.get_1d_mesh("data")
      >>> shard = xs.enable_manual_sharding(torch.ones(8, 2, device="xla"), ("data", None), mesh=mesh)
      >>> y = xs.disable_manual_sharding(shard * 2, ("data", None), (8, 2), mesh=mesh)
      >>> list(y.shape)
      [8, 2]
    """
    number, parts = _validate("disable_manual_sharding", t, mesh, partition_spec, full_shape)
    expected = [size // count for size, count in zip(full_shape, parts, strict=True)]
    if list(t.shape) != expected:
        raise ValueError(
            f"disable_manual_sharding: a shard of {list(full_shape)} under {tuple(partition_spec)} has shape "
            f"{expected}, got {list(t.shape)} (at {user_frames.user_line()})"
        )
    changed: torch.Tensor = _ManualBoundary.apply(t, False, number, list(full_shape))  # type: ignore[no-untyped-call]
    return changed


def _validate(
    op: str, t: torch.Tensor, mesh: Mesh | None, spec: Sequence[Any], whole: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    mesh = mesh or get_global_mesh()
    if mesh is None:
        raise ValueError(f"{op}: pass a mesh, or call set_global_mesh")
    if len(spec) != len(whole):
        raise ValueError(f"{op}: partition_spec {tuple(spec)} has {len(spec)} entries for {len(whole)} dimensions")
    sharding = validated_sharding(op, t, mesh, spec)
    if orders.device_order(sharding) != tuple(range(mesh.size())):
        raise ValueError(f"{op}: the devices of the mesh must be in order of their numbers: {mesh!r}")
    parts = sharding_ids.partition_counts(sharding, len(whole))
    if any(size % count for size, count in zip(whole, parts, strict=True)):
        raise ValueError(
            f"{op}: {list(whole)} is not divisible by the partition counts {list(parts)} (at {user_frames.user_line()})"
        )
    return sharding_ids.sharding_id(sharding, len(whole)), parts
