"""The heap of this process, as glibc's malloc keeps it: XLA takes from it what a program for the CPU writes to.

malloc maps a large block by itself and unmaps it when it is freed, so the system has to find and zero each of its pages
again at the next run: much of the processor time in a step of a small transformer. malloc sees this: it raises the size
from which a block is large to that of any such block that is freed, and the free memory that the heap keeps to twice
that; but only up to 32 MB. Here the same rule goes on for what programs need.

    a program for the CPU has       a block is large from                the heap keeps free
    blocks of up to 32 MB           32 MB                                four times what it takes, at least 64 MB
    larger ones                     the size of its largest block        four times what it takes
    one larger than `_most()`       as if it did not have that one       at most twice `_most()`

That is of the heap of Python's main thread. Others, as those of XLA and of ATen's kernels, take from areas of 64 MB,
which malloc gives back as soon as nothing in them is used, whatever was said of free memory. It does not where it is to
have as much at hand for the next block (M_TOP_PAD): address space, of which the system finds what is used.

The heap is the whole process's: what the user's own code frees stays as well, up to the same bounds
(tests/diagnostics/test_device_memory.py). TORCH_XLA_KEEP_HEAP=0 turns this off; where the user has configured malloc (GLIBC_TUNABLES,
MALLOC_..._), or malloc is another, nothing is changed.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import device_memory
from torch_xla._engine.graph.program_info import ProgramSizes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # M_..., in glibc's malloc.h
_BY_ITSELF = 32 << 20  # bytes of a block, up to which malloc does this: DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
_AREA = 64 << 20  # bytes of a thread's heap: HEAP_MAX_SIZE on 64 bits
_MOST = 1 << 30  # bytes of a block: twice as many must be a C int
_PART = 16  # of the machine's memory that one block may have
_AT_ONCE = 4  # runs, whose memory may be free together; with twice what one takes it still came and went
_HEAD = 4096  # bytes that malloc adds to a block, at most

_large, _free = 0, 0  # what malloc was told; nothing yet
_lock = fork_safe_lock()  # of these: a thread that loads programs ahead tells it, too


def retain_program_memory(sizes: ProgramSizes) -> None:
    """What a program gives back stays with the process from now on, to be used again."""
    global _large, _free
    mallopt = _function("mallopt")
    if mallopt is None or not settings.TORCH_XLA_KEEP_HEAP or _user_configured_malloc():
        return
    blocks = [size for size in (*sizes.results, sizes.temporary) if size <= _max_block()]
    with _lock:
        large = max([_large, _BY_ITSELF, *blocks])
        free = max(_free, 2 * _BY_ITSELF, min(_AT_ONCE * sizes.extra, 2 * _max_block()))
        if (large, free) != (_large, _free):
            _large, _free = large, free
            mallopt(_MMAP_THRESHOLD, large + _HEAD)
            mallopt(_TRIM_THRESHOLD, free - 1)
            mallopt(_TOP_PAD, _AREA)


def trim_free_memory() -> None:
    """Has malloc give to the system what nobody uses."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """glibc's; None where the C library is another."""
    return getattr(ctypes.CDLL(None), name, None)


@functools.cache
def _max_block() -> int:
    return min(_MOST, device_memory.host_memory_limit() // _PART)


@functools.cache
def _user_configured_malloc() -> bool:
    # What glibc itself read when the process started.
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tuned
        for name in ("mmap_threshold", "trim_threshold", "mmap_max", "top_pad")
    )
