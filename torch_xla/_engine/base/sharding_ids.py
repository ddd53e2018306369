"""Integer ids of shardings, for a recorder that only compares and hashes them.

An id identifies one sharding of tensors of one rank, regardless of the mesh and axis names that describe it: shardings
that put the same elements on the same devices have equal ids. 0 means unsharded. Ids are assigned permanently, from 1,
in the order of the first request: the processes of a job, which run one script, agree on them.

The size of a dimension need not be a multiple of its partition count. Then the array on the devices is longer than the
tensor, by fewer elements than there are partitions, and padded with zeros. ``padded_shape`` is its shape. Programs
slice it to the size of the tensor.
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
_known: list[tuple[Sharding, int]] = []  # (sharding, rank) by id - 1
_numbers: dict[tuple[Sharding, int], int] = {}


def sharding_id(sharding: Sharding, rank: int) -> int:
    """Return the id of a sharding of tensors with ``rank`` dimensions."""
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
    """Return the sharding of an id; None for 0. In a block of ``remap_shardings``, on its devices."""
    if not number:
        return None
    found, moved = _known[number - 1][0], _moved.get()
    return found if moved is None else moved(found)


_moved: ContextVar[Callable[[Sharding], Sharding] | None] = ContextVar("moved", default=None)


@contextmanager
def remap_shardings(moved: Callable[[Sharding], Sharding]) -> Iterator[None]:
    """Make ``sharding_from_id`` return ``moved(sharding)`` in this block, on this thread: for other target devices."""
    token = _moved.set(moved)
    try:
        yield
    finally:
        _moved.reset(token)


def partition_counts(sharding: Sharding, rank: int) -> tuple[int, ...]:
    """Return the number of partitions of each dimension of a tensor."""
    if not isinstance(sharding, NamedSharding):
        return (1,) * rank  # a single-device sharding
    sizes = dict(sharding.mesh.shape)
    axes = [(names,) if isinstance(names, str) else names or () for names in sharding.spec]
    return tuple(math.prod(sizes[name] for name in names) for names in (*axes, *((),) * (rank - len(axes))))


@functools.lru_cache(maxsize=4096)
def padded_shape(shape: tuple[int, ...], sharding: Sharding) -> tuple[int, ...]:
    """Return the shape of the padded array on the devices for a tensor of the given shape."""
    return tuple(
        -(-size // count) * count for size, count in zip(shape, partition_counts(sharding, len(shape)), strict=True)
    )


def bytes_per_device(shape: tuple[int, ...], itemsize: int, sharding: Sharding) -> int:
    """Return the bytes per device of an array whose shape is divisible by the partition counts."""
    return math.prod(sharding.shard_shape(shape)) * itemsize
