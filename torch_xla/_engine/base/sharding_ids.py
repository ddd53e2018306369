"""Shardings by number: how values lie on the devices of a mesh, for a recorder that only compares and hashes.

A number stands for one layout of tensors of one rank, whichever mesh and axis names describe it: shardings that put
the same elements on the same devices have one number. 0 stands for none. Numbers are given out for good, from 1, in
the order in which they are first asked for: the processes of a job, which run one script, agree on them.

A dimension need not be a multiple of the number of its parts: then the array on the devices is longer than the tensor,
by fewer elements than there are parts, and zeros. ``padded`` is its shape. Programs take it as long as the tensor is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jax.sharding import NamedSharding, Sharding

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock

_lock = fork_safe_lock()
_known: list[tuple[Sharding, int]] = []  # sharding and rank, by number - 1
_numbers: dict[tuple[Sharding, int], int] = {}


def sharding_id(sharding: Sharding, rank: int) -> int:
    """The number of a sharding of tensors with ``rank`` dimensions."""
    found = _numbers.get((sharding, rank))
    return found if found is not None else _assign_id(sharding, rank)


def _assign_id(sharding: Sharding, rank: int) -> int:
    with _lock:
        for position, (other, other_rank) in enumerate(_known):
            if rank == other_rank and sharding.is_equivalent_to(other, rank):
                return _numbers.setdefault((sharding, rank), position + 1)
        _known.append((sharding, rank))
        return _numbers.setdefault((sharding, rank), len(_known))


def sharding_from_id(number: int) -> Sharding | None:
    """The sharding behind a number; None for 0. In a block of ``elsewhere`` the same layout on other devices."""
    if not number:
        return None
    found, moved = _known[number - 1][0], _moved.get()
    return found if moved is None else moved(found)


_moved: ContextVar[Callable[[Sharding], Sharding] | None] = ContextVar("moved", default=None)


@contextmanager
def remap_shardings(moved: Callable[[Sharding], Sharding]) -> Iterator[None]:
    """In this block, on this thread, ``of`` gives ``moved(sharding)``: for a program that is compiled for others."""
    token = _moved.set(moved)
    try:
        yield
    finally:
        _moved.reset(token)


def partition_counts(sharding: Sharding, rank: int) -> tuple[int, ...]:
    """Into how many parts the sharding splits each dimension of a tensor."""
    if not isinstance(sharding, NamedSharding):
        return (1,) * rank  # of one device
    sizes = dict(sharding.mesh.shape)
    axes = [(names,) if isinstance(names, str) else names or () for names in sharding.spec]
    return tuple(math.prod(sizes[name] for name in names) for names in (*axes, *((),) * (rank - len(axes))))


@functools.lru_cache(maxsize=4096)
def padded_shape(shape: tuple[int, ...], sharding: Sharding) -> tuple[int, ...]:
    """The shape of the array on the devices for a tensor of the given shape."""
    return tuple(
        -(-size // count) * count for size, count in zip(shape, partition_counts(sharding, len(shape)), strict=True)
    )


def bytes_per_device(shape: tuple[int, ...], itemsize: int, sharding: Sharding) -> int:
    """The bytes that each device holds of an array of the given shape, which its parts divide."""
    return math.prod(sharding.shard_shape(shape)) * itemsize
