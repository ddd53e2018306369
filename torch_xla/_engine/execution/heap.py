"""The heap of this process, as glibc's malloc keeps it: XLA takes from it what a program for the CPU writes to.

malloc maps a large block by itself and unmaps it when it is freed, so the system has to find and zero each of its pages
again at the next run: much of the processor time in a step of a small transformer. malloc sees this: it raises the size
from which a block is large to that of any such block that is freed, and the free memory that the heap keeps to twice
that; but only up to 32 MB. Here the same rule goes on for what programs need.

    a program for the CPU has       a block is large from                the heap keeps free
    blocks of up to 32 MB           32 MB                                four times what it takes, at least 64 MB
    larger ones                     the size of its largest block        four times what it takes
    one larger than `_most()`       as if it did not have that one       at most twice `_most()`

Where the user told malloc what to do (GLIBC_TUNABLES, MALLOC_..._), or malloc is another, nothing is changed.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from torch_xla._engine.diagnostics import memory
from torch_xla._engine.diagnostics.observer import Sizes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_..., in glibc's malloc.h
_BY_ITSELF = 32 << 20  # bytes of a block, up to which malloc does this: DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
_MOST = 1 << 30  # bytes of a block: twice as many must be a C int
_PART = 16  # of the machine's memory that one block may have
_AT_ONCE = 4  # runs, whose memory may be free together; with twice what one takes it still came and went
_HEAD = 4096  # bytes that malloc adds to a block, at most

_large, _free = _BY_ITSELF, 2 * _BY_ITSELF


def keep(sizes: Sizes) -> None:
    """What a program gives back stays with the process from now on, to be used again."""
    global _large, _free
    mallopt = _function("mallopt")
    if mallopt is None or _user_decides():
        return
    blocks = [size for size in (*sizes.results, sizes.temporary) if size <= _most()]
    large, free = max([_large, *blocks]), max(_free, min(_AT_ONCE * sizes.extra, 2 * _most()))
    if (large, free) != (_large, _free):
        _large, _free = large, free
        mallopt(_MMAP_THRESHOLD, large + _HEAD)
        mallopt(_TRIM_THRESHOLD, free - 1)


def return_free() -> None:
    """Has malloc give to the system what nobody uses."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """glibc's; None where the C library is another."""
    return getattr(ctypes.CDLL(None), name, None)


@functools.cache
def _most() -> int:
    return min(_MOST, memory.physical() // _PART)


@functools.cache
def _user_decides() -> bool:
    # What glibc itself read when the process started.
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tuned
        for name in ("mmap_threshold", "trim_threshold", "mmap_max", "top_pad")
    )
