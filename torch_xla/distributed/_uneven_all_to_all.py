"""all_to_all with unequal splits. XLA supports equal splits only: pad the splits, exchange them, and unpad.

Every rank knows the sizes that it sends and receives, but the largest split is known only globally. So the ranks first
exchange sizes on the host: a call costs a rendezvous. Rows are gathered by index tensors, which are inputs and not
constants, and splits are padded to a power of two: other sizes with the same totals run the same program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_xla._engine.base import user_frames
from torch_xla._engine.job import rendezvous


@dataclass(frozen=True)
class SplitSizes:
    """The number of rows that a rank sends to, and receives from, each rank of its group."""

    sent: list[int]
    received: list[int]


def resolve_splits(op: str, count: int, rows: int, splits: Sequence[int]) -> list[int]:
    """Return the sizes of ``rows`` rows split among ``count`` ranks. Raises ValueError for invalid splits."""
    if not splits:
        splits = [rows // count] * count
    if len(splits) != count or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"{op}: splits {list(splits)} must be {count} sizes, one per rank, that sum to the {rows} rows "
            f"(at {user_frames.user_line()})"
        )
    return list(splits)


def max_split(op: str, group: str, ordinals: Sequence[int], mine: SplitSizes) -> tuple[int, bool]:
    """Return the rows of the largest split of all ranks, and whether all splits have that size.

    Raises ValueError on every rank if a rank expects other sizes than another one sends.
    """
    said = rendezvous.rendezvous(f"{op} {group}", json.dumps([mine.sent, mine.received]).encode(), ordinals)
    by_ordinal = dict(zip(sorted(ordinals), said, strict=True))
    everyone = [SplitSizes(*json.loads(by_ordinal[ordinal])) for ordinal in ordinals]
    for i, source in enumerate(everyone):
        for j, target in enumerate(everyone):
            if source.sent[j] != target.received[i]:
                raise ValueError(
                    f"{op}: rank {ordinals[i]} sends {source.sent[j]} rows to rank {ordinals[j]}, which expects "
                    f"{target.received[i]} (at {user_frames.user_line()})"
                )
    sizes = {size for parts in everyone for size in parts.sent}
    return max(sizes), len(sizes) == 1


def all_to_all_uneven(
    rows: torch.Tensor, parts: SplitSizes, size: int, exchanged: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the rows that this rank receives. ``exchanged`` is an equal all_to_all of [ranks, size, ...]."""
    if size == 0:
        return rows.new_empty((0, *rows.shape[1:]))
    size = 1 << (size - 1).bit_length()
    padding = rows.new_zeros((1, *rows.shape[1:]))
    there = torch.cat([rows, padding]).index_select(0, _pad_indices(parts.sent, size, len(rows)).to(rows.device))
    here = exchanged(there.reshape(len(parts.sent), size, *rows.shape[1:])).flatten(0, 1)
    return here.index_select(0, _unpad_indices(parts.received, size).to(rows.device))


def _pad_indices(splits: Sequence[int], size: int, padding: int) -> torch.Tensor:
    """Return, for each slot of each padded split of ``size`` rows, the index of its row, or ``padding``."""
    index = torch.full((len(splits), size), padding)
    start = 0
    for part, count in enumerate(splits):
        index[part, :count] = torch.arange(start, start + count)
        start += count
    return index.flatten()


def _unpad_indices(splits: Sequence[int], size: int) -> torch.Tensor:
    """Return the slots, in padded splits of ``size`` rows, of the rows that are not padding."""
    return torch.cat([torch.arange(count) + part * size for part, count in enumerate(splits)])
