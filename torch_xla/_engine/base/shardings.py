"""Shardings by number: how values lie on the devices of a mesh, for a recorder that only compares and hashes.

A number stands for one layout of tensors of one rank, whichever mesh and axis names describe it: shardings that put
the same elements on the same devices have one number. 0 stands for none. Numbers are given out for good, from 1, in
the order in which they are first asked for: the processes of a job, which run one script, agree on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jax.sharding import Sharding

from torch_xla._engine.base.locks import process_lock

_lock = process_lock()
_known: list[tuple[Sharding, int]] = []  # sharding and rank, by number - 1
_numbers: dict[tuple[Sharding, int], int] = {}


def number(sharding: Sharding, rank: int) -> int:
    """The number of a sharding of tensors with ``rank`` dimensions."""
    found = _numbers.get((sharding, rank))
    return found if found is not None else _give(sharding, rank)


def _give(sharding: Sharding, rank: int) -> int:
    with _lock:
        for position, (other, other_rank) in enumerate(_known):
            if rank == other_rank and sharding.is_equivalent_to(other, rank):
                return _numbers.setdefault((sharding, rank), position + 1)
        _known.append((sharding, rank))
        return _numbers.setdefault((sharding, rank), len(_known))


def of(number: int) -> Sharding | None:
    """The sharding behind a number; None for 0. In a block of ``elsewhere`` the same layout on other devices."""
    if not number:
        return None
    found, moved = _known[number - 1][0], _moved.get()
    return found if moved is None else moved(found)


_moved: ContextVar[Callable[[Sharding], Sharding] | None] = ContextVar("moved", default=None)


@contextmanager
def elsewhere(moved: Callable[[Sharding], Sharding]) -> Iterator[None]:
    """In this block, on this thread, ``of`` gives ``moved(sharding)``: for a program that is compiled for others."""
    token = _moved.set(moved)
    try:
        yield
    finally:
        _moved.reset(token)
