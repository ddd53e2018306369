"""Shares of parameters: what a replica holds of them, and the gathered whole."""

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
    """The replicas that share a model, and this one's place among them."""

    groups: list[list[int]] | None
    rank: int
    size: int

    @classmethod
    def of(cls, groups: list[list[int]] | None, rank: int | None, size: int | None) -> ShardGroup:
        """The group of this replica. Raises ValueError where it is in none."""
        mine = list(range(world_size()))
        if groups is not None:
            found = [group for group in groups if global_ordinal() in group]
            if not found:
                raise ValueError(f"sharding_groups={groups}: replica {global_ordinal()} is in none")
            mine = found[0]
        return cls(groups, mine.index(global_ordinal()) if rank is None else rank, len(mine) if size is None else size)


@dataclass
class Shard:
    """This replica's share of a parameter, or of several that are laid end to end.

    ``places`` are the layers and names that have the parameters; one that is there twice has two. ``pieces`` says for
    each place which of the parameters it is; ``shapes`` are theirs.
    """

    key: str
    parameter: nn.Parameter
    shapes: list[torch.Size]
    names: list[str]
    places: list[tuple[nn.Module, str]]
    pieces: list[int]
    rows: bool  # the share is some rows; else some elements

    def split(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """The parameter of each place, out of the gathered whole."""
        if self.rows:
            parts = [whole[: self.shapes[0][0]]]
        else:
            counts = [math.prod(shape) for shape in self.shapes]
            filled = whole.numel() - sum(counts)
            flat = whole.split([*counts, filled] if filled else counts)
            parts = [part.view(shape) for part, shape in zip(flat, self.shapes, strict=False)]
        return [parts[piece] for piece in self.pieces]

    def metadata(self, names: list[str]) -> dict[str, Any]:
        """What consolidating has to know; the names are those in the module that was wrapped."""
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
    """This replica's share of the parameters; only that moves to xla."""
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
    """A replica's part of a tensor along dimension 0, filled up with zeros so that all parts have one size."""
    size = -(-value.shape[0] // (group.size * multiple)) * multiple
    part = value[group.rank * size : (group.rank + 1) * size]
    missing = size - part.shape[0]
    if missing:
        part = torch.cat([part, part.new_zeros(missing, *part.shape[1:])])
    return part.clone()


class _AllGatherShard(torch.autograd.Function):
    """The whole of a share; its gradient is this replica's share of the sum, scaled."""

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
    """This replica's part, along dimension 0, of the sum over the group, scaled."""
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
    """All replicas' shares together, in the dtype, computed once ``after`` is there; differentiable."""
    whole: torch.Tensor = _AllGatherShard.apply(shard.parameter, group, dtype, wide, scale, after)  # type: ignore[no-untyped-call]
    return whole
