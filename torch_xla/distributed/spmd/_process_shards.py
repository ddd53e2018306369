"""Shards of parameters over a mesh of processes: a DTensor per parameter, and its differentiable all-gather.

The collectives are recorded and run with the step, unlike the calls of torch.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_xla._engine.compat import distributed as compat
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import collectives
from torch_xla._engine.torch_patches.checkpoint_barrier import with_optimization_barrier


@dataclass(frozen=True)
class MeshAxis:
    """A dimension of a mesh: its replica groups (None: all replicas in one), and this process's rank and their size."""

    groups: list[list[int]] | None
    rank: int
    size: int


def mesh_axis(mesh: Any, dim: int) -> MeshAxis:
    """Return a dimension of a mesh whose devices are processes. Raises ValueError if its ranks do not ascend."""
    rank, size = mesh.get_local_rank(dim), mesh.size(dim)
    whole, position = compat.root_mesh(mesh), dim
    if whole is not mesh:
        name = (mesh.mesh_dim_names or ())[dim]
        names = whole.mesh_dim_names or ()
        if name not in names:  # several dimensions that were flattened into one
            return MeshAxis(collectives.PartialGroup([_ranks(mesh, dim)]), rank, size)
        position = names.index(name)
    rows = whole.mesh.movedim(position, -1).reshape(-1, size).tolist()
    if any(row != sorted(row) for row in rows):
        raise ValueError(f"fully_shard: the ranks of {mesh} must ascend along each dimension")
    if size == replicas.world_size():
        return MeshAxis(None, rank, size)
    complete = whole.mesh.numel() == replicas.world_size()
    return MeshAxis(rows if complete else collectives.PartialGroup([_ranks(mesh, dim)]), rank, size)


def _ranks(mesh: Any, dim: int) -> list[int]:
    index: list[Any] = list(mesh.get_coordinate())
    index[dim] = slice(None)
    found: list[int] = mesh.mesh[tuple(index)].tolist()
    return found


@dataclass(frozen=True)
class Reduction:
    """Dtypes of the all-gather and the reduction (None: that of the tensor), and the factor of the gradients' sum."""

    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    scale: float


@dataclass(frozen=True)
class Layout:
    """A parameter of ``shape``, sharded along ``dim`` over ``shard``; ``replicate`` has the copies of each shard."""

    shape: torch.Size
    dim: int
    shard: MeshAxis
    replicate: MeshAxis | None

    @property
    def chunk(self) -> int:
        """The size of each shard along ``dim``, except the last ones, which may be smaller or empty."""
        return -(-self.shape[self.dim] // self.shard.size)

    def own_range(self) -> tuple[int, int]:
        """Return the start and the length of this process's shard."""
        start = min(self.shard.rank * self.chunk, self.shape[self.dim])
        return start, min(self.chunk, self.shape[self.dim] - start)


def shard_parameter(parameter: nn.Parameter, mesh: Any, layout: Layout) -> nn.Parameter:
    """Return this process's shard of a parameter as a DTensor; only the shard moves to xla."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    value = parameter.detach()
    local = value.narrow(layout.dim, *layout.own_range()).contiguous()
    if not local.is_meta:
        local = local.to("xla") if local.device.type != "xla" else local.clone()
    placements = [*[Replicate()] * (mesh.ndim - 1), Shard(layout.dim)]
    sharded = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=value.shape, stride=value.contiguous().stride()
    )
    return nn.Parameter(sharded, requires_grad=parameter.requires_grad)


def gather_parameter(
    parameter: Any, layout: Layout, reduction: Reduction, after: Sequence[torch.Tensor]
) -> torch.Tensor:
    """All-gather a sharded parameter, ordered after the tensors ``after``. Backward reduce-scatters the gradient."""
    gathered: torch.Tensor = _GatherShard.apply(parameter.to_local(), layout, reduction, after)  # type: ignore[no-untyped-call]
    return gathered


class _GatherShard(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, layout: Layout, reduction: Reduction, after: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        ctx.layout, ctx.reduction, ctx.dtype = layout, reduction, local.dtype
        (value,) = with_optimization_barrier([local.detach()], after) if after else [local.detach()]
        if reduction.param_dtype is not None and value.is_floating_point():
            value = value.to(reduction.param_dtype)
        if layout.shard.size == 1:
            return value.clone()
        padded = _pad(value, layout.dim, layout.chunk)
        full = collectives.all_gather(padded, layout.dim, layout.shard.groups)
        return full.narrow(layout.dim, 0, layout.shape[layout.dim])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layout, reduction, value = ctx.layout, ctx.reduction, grads[0]
        if reduction.reduce_dtype is not None:
            value = value.to(reduction.reduce_dtype)
        if layout.shard.size > 1:
            value = _pad(value, layout.dim, layout.chunk * layout.shard.size)
            value = collectives.reduce_scatter("sum", value, layout.dim, layout.shard.groups)
        # Still padded: all replica groups run one program, and the last shards are smaller than others.
        if layout.replicate is not None and layout.replicate.size > 1:
            (value,) = collectives.all_reduce("sum", [value], groups=layout.replicate.groups)
        value = value.narrow(layout.dim, 0, layout.own_range()[1])
        return (value * reduction.scale).to(ctx.dtype), None, None, None


def _pad(value: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    missing = size - value.shape[dim]
    if missing == 0:
        return value
    shape = list(value.shape)
    shape[dim] = missing
    return torch.cat([value, value.new_zeros(shape)], dim)
