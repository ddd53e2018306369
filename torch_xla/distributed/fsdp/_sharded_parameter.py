"""Shards of parameters: split a parameter over replicas, and all-gather it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_xla._engine.torch_patches.checkpoint_barrier import with_optimization_barrier
from torch_xla.core import xla_model as xm
from torch_xla.core._gradients import SHARE
from torch_xla.runtime import global_ordinal, world_size


@dataclass(frozen=True)
class ShardGroup:
    """The replicas that share a model, and this replica's rank among them."""

    groups: list[list[int]] | None
    rank: int
    size: int

    @classmethod
    def of(cls, groups: list[list[int]] | None, rank: int | None, size: int | None) -> ShardGroup:
        """Return the group of this replica. Raises ValueError if it is in no group."""
        mine = list(range(world_size()))
        if groups is not None:
            found = [group for group in groups if global_ordinal() in group]
            if not found:
                raise ValueError(f"sharding_groups={groups}: replica {global_ordinal()} is in no group")
            mine = found[0]
        return cls(groups, mine.index(global_ordinal()) if rank is None else rank, len(mine) if size is None else size)


@dataclass
class Shard:
    """This replica's shard of a parameter, or of several parameters that are flattened and concatenated.

    ``places`` are the (layer, name) slots of the parameters; a shared parameter has several. ``pieces`` is, per slot,
    the index of its parameter; ``shapes`` are the parameters' shapes.
    """

    key: str
    parameter: nn.Parameter
    shapes: list[torch.Size]
    names: list[str]
    places: list[tuple[nn.Module, str]]
    pieces: list[int]
    rows: bool  # the shard is a range of rows; otherwise a range of elements

    def split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Return the parameter of each slot, from the gathered values."""
        if self.rows:
            parts = [whole[: self.shapes[0][0]]]
        else:
            counts = [math.prod(shape) for shape in self.shapes]
            filled = whole.numel() - sum(counts)
            flat = whole.split([*counts, filled] if filled else counts)
            parts = [part.view(shape) for part, shape in zip(flat, self.shapes, strict=False)]
        return [parts[piece] for piece in self.pieces]

    def metadata(self, names: list[str]) -> dict[str, Any]:
        """Return the metadata for consolidation; the names are those in the wrapped module."""
        return {
            "names": names,
            "pieces": list(self.pieces),
            "shapes": [list(shape) for shape in self.shapes],
            "rows": self.rows,
        }


def make_shard(
    number: int,
    params: list[nn.Parameter],
    places: dict[nn.Parameter, list[tuple[nn.Module, str, str]]],
    group: ShardGroup,
    rows: bool,
    multiple: int,
) -> Shard:
    """Create this replica's shard of the parameters; only the shard moves to xla."""
    rows = rows and params[0].dim() > 0
    value = params[0].detach() if rows else torch.cat([p.detach().reshape(-1) for p in params])
    share = shard_of(value, group, 1 if rows else multiple)
    parameter = nn.Parameter(share.to("xla"), params[0].requires_grad)
    setattr(parameter, SHARE, True)
    found = [(layer, name, path, piece) for piece, p in enumerate(params) for layer, name, path in places[p]]
    key = f"_fsdp_shard_{number}_" + found[0][2].replace(".", "__")
    return Shard(
        key,
        parameter,
        [p.shape for p in params],
        [path for _, _, path, _ in found],
        [(layer, name) for layer, name, _, _ in found],
        [piece for *_, piece in found],
        rows,
    )


def shard_of(value: torch.Tensor, group: ShardGroup, multiple: int = 1) -> torch.Tensor:
    """Return a replica's shard of a tensor along dimension 0, zero-padded so that all shards have the same size."""
    size = -(-value.shape[0] // (group.size * multiple)) * multiple
    part = value[group.rank * size : (group.rank + 1) * size]
    missing = size - part.shape[0]
    if missing:
        part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
    return part.clone()


class _AllGatherShard(torch.autograd.Function):
    """All-gather a shard; backward reduce-scatters the gradient and scales it."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, group: ShardGroup, dtype: torch.dtype | None, wide: bool, scale: float,
                after: Sequence[torch.Tensor]) -> torch.Tensor:  # fmt: skip
        ctx.group, ctx.wide, ctx.scale, ctx.dtype = group, wide, scale, share.dtype
        (apart,) = with_optimization_barrier([share.detach()], after) if after else [share.detach()]
        return xm.all_gather(apart if dtype is None else apart.to(dtype), 0, groups=group.groups)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = grads[0].float() if ctx.wide else grads[0]
        mine = reduce_scatter_dim0(grad, ctx.group, ctx.scale)
        return mine.to(ctx.dtype), None, None, None, None, None


def reduce_scatter_dim0(value: torch.Tensor, group: ShardGroup, scale: float) -> torch.Tensor:
    """Return this replica's shard, along dimension 0, of the scaled sum over the group."""
    if group.size == 1:
        return value * scale
    found = xm.reduce_scatter("sum", value, scale, 0, group.size, groups=group.groups)
    assert isinstance(found, torch.Tensor)
    return found


def gather(
    shard: Shard,
    group: ShardGroup,
    dtype: torch.dtype | None,
    wide: bool,
    scale: float,
    after: Sequence[torch.Tensor],
) -> torch.Tensor:
    """All-gather all replicas' shards in the dtype, ordered after the tensors ``after``; differentiable."""
    whole: torch.Tensor = _AllGatherShard.apply(shard.parameter, group, dtype, wide, scale, after)  # type: ignore[no-untyped-call]
    return whole
