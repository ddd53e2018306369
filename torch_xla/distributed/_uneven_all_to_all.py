"""all_to_all of parts that differ in size. XLA has it for equal ones: parts are padded, exchanged, and cut.

Every rank knows what it sends and what it receives; only all together know the largest part. So they say it to each
other on the host first: a call costs a meeting of the processes. Rows are chosen by indices that are values and no
constants, and parts are padded to a power of two: other sizes between the same totals run the same program.
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
    """How many rows a rank sends to each rank of its group, and how many it receives from each."""

    sent: list[int]
    received: list[int]


def resolve_splits(op: str, count: int, rows: int, splits: Sequence[int]) -> list[int]:
    """The sizes of the parts of ``rows`` rows among ``count`` ranks. Raises ValueError where they do not fit."""
    if not splits:
        splits = [rows // count] * count
    if len(splits) != count or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"{op}: splits {list(splits)} must be {count} sizes, one a rank, that add up to the {rows} rows there are "
            f"(at {user_frames.user_line()})"
        )
    return list(splits)


def max_split(op: str, group: str, ordinals: Sequence[int], mine: SplitSizes) -> tuple[int, bool]:
    """The rows of the largest part of all ranks, and whether all parts are that large.

    Raises ValueError, on every rank, where one does not expect what another sends.
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
    """The rows that this rank receives. ``exchanged`` swaps equal parts: [ranks, size, ...] to the same shape."""
    if size == 0:
        return rows.new_empty((0, *rows.shape[1:]))
    size = 1 << (size - 1).bit_length()
    padding = rows.new_zeros((1, *rows.shape[1:]))
    there = torch.cat([rows, padding]).index_select(0, _pad_indices(parts.sent, size, len(rows)).to(rows.device))
    here = exchanged(there.reshape(len(parts.sent), size, *rows.shape[1:])).flatten(0, 1)
    return here.index_select(0, _unpad_indices(parts.received, size).to(rows.device))


def _pad_indices(splits: Sequence[int], size: int, padding: int) -> torch.Tensor:
    """For each place of each part of ``size`` rows: the row that goes there, or ``padding``."""
    index = torch.full((len(splits), size), padding)
    start = 0
    for part, count in enumerate(splits):
        index[part, :count] = torch.arange(start, start + count)
        start += count
    return index.flatten()


def _unpad_indices(splits: Sequence[int], size: int) -> torch.Tensor:
    """The places, among parts of ``size`` rows, of the rows that are no padding."""
    return torch.cat([torch.arange(count) + part * size for part, count in enumerate(splits)])
