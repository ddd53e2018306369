"""Parts of a program in which each device computes with its own part of a tensor: manual sharding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine.base import sharding_ids, user_frames
from torch_xla._engine.compat import sharding as orders
from torch_xla.distributed.spmd._mesh import Mesh, get_global_mesh, validated_sharding


class _ManualBoundary(torch.autograd.Function):
    """A tensor into a manual part, or out of one; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, enters: bool, number: int, shape: Sequence[int]) -> torch.Tensor:
        ctx.back = not enters, number, list(t.shape)
        return _cross_boundary(t, enters, number, list(shape), transposed=False)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        enters, number, shape = ctx.back
        return _cross_boundary(grads[0], enters, number, shape, transposed=True), None, None, None


def _cross_boundary(t: torch.Tensor, enters: bool, number: int, shape: list[int], transposed: bool) -> torch.Tensor:
    """Into a part, or out of it. ``transposed``: as the gradient of the other way, of several devices with one part

    the sum of theirs, or to the first of them.
    """
    change = torch.ops.torch_xla.to_manual if enters else torch.ops.torch_xla.from_manual
    changed: torch.Tensor = change(t, number, shape, transposed)
    return changed


def enable_manual_sharding(t: torch.Tensor, partition_spec: Sequence[Any], *, mesh: Mesh | None = None) -> torch.Tensor:
    """This device's part of a tensor, whichever device runs the program: of the shape that one device has.

    What is computed of it is computed on each device by itself, with nothing exchanged, until disable_manual_sharding
    makes one tensor of the parts. Tensors that are not in such a part are there whole on every device; one that needs a
    gradient has to be brought in, too: ``enable_manual_sharding(weight, (None, None))``. Differentiable. No tensor of a
    part may live on to the next step barrier.

    Args:
      t: an xla tensor.
      partition_spec: as for mark_sharding; every dimension must be a multiple of the number of its parts.
      mesh: the devices, in their order; default: the global mesh.

    Raises what mark_sharding raises; ValueError without a mesh, for one in another order, and for uneven parts.
    """
    number, parts = _validate("enable_manual_sharding", t, mesh, partition_spec, t.shape)
    shape = [size // count for size, count in zip(t.shape, parts, strict=True)]
    changed: torch.Tensor = _ManualBoundary.apply(t, True, number, shape)  # type: ignore[no-untyped-call]
    return changed


def disable_manual_sharding(
    t: torch.Tensor, partition_spec: Sequence[Any], full_shape: Sequence[int], *, mesh: Mesh | None = None
) -> torch.Tensor:
    """The tensor of ``full_shape`` whose parts the devices have computed; see enable_manual_sharding.

    Of several devices that have the same part, the first one's counts. Raises ValueError where the part has not the
    shape that one of ``full_shape`` has.
    """
    number, parts = _validate("disable_manual_sharding", t, mesh, partition_spec, full_shape)
    expected = [size // count for size, count in zip(full_shape, parts, strict=True)]
    if list(t.shape) != expected:
        raise ValueError(
            f"disable_manual_sharding: a part of {list(full_shape)} under {tuple(partition_spec)} has shape "
            f"{expected}, got {list(t.shape)} (at {user_frames.user_line()})"
        )
    changed: torch.Tensor = _ManualBoundary.apply(t, False, number, list(full_shape))  # type: ignore[no-untyped-call]
    return changed


def _validate(
    op: str, t: torch.Tensor, mesh: Mesh | None, spec: Sequence[Any], whole: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    mesh = mesh or get_global_mesh()
    if mesh is None:
        raise ValueError(f"{op}: give a mesh, or call set_global_mesh")
    if len(spec) != len(whole):
        raise ValueError(f"{op}: partition_spec {tuple(spec)} has {len(spec)} entries for {len(whole)} dimensions")
    sharding = validated_sharding(op, t, mesh, spec)
    if orders.device_order(sharding) != tuple(range(mesh.size())):
        raise ValueError(f"{op}: a mesh whose devices are in another order than that of their numbers: {mesh!r}")
    parts = sharding_ids.partition_counts(sharding, len(whole))
    if any(size % count for size, count in zip(whole, parts, strict=True)):
        raise ValueError(
            f"{op}: {list(whole)} cannot be split evenly in {list(parts)} parts (at {user_frames.user_line()})"
        )
    return sharding_ids.sharding_id(sharding, len(whole)), parts
