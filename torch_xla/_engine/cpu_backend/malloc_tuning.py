"""malloc tuning: makes glibc retain the memory of CPU programs, which XLA allocates from the process heap.

glibc maps each large block separately and unmaps it when it is freed, so the system has to fault in and zero its pages
again at the next run: much of the processor time of a small transformer's step. glibc adapts: freeing a mapped block
raises the threshold (M_MMAP_THRESHOLD) to its size, and the retained free memory (M_TRIM_THRESHOLD) to twice that, but
only up to 32 MB. This module continues the rule for the sizes that programs need:

    a CPU program has                 mmap threshold                      retained free memory
    blocks of up to 32 MB             32 MB                               four times its memory use, at least 64 MB
    larger blocks                     the size of its largest block       four times its memory use
    a block above `_max_block()`      as without that block               at most twice `_max_block()`

This applies to the heap of Python's main thread. Other threads, such as XLA's and the kernel thread, allocate from
arenas of 64 MB, which glibc releases once they are unused, whatever the trim threshold. M_TOP_PAD of an arena's size
prevents that; it costs address space, of which only touched pages use memory.

The heap belongs to the whole process: memory freed by user code is retained too, up to the same bounds
(tests/diagnostics/test_device_memory.py). TORCH_XLA_KEEP_HEAP=0 turns this off. Nothing is changed if the user has
configured malloc (GLIBC_TUNABLES, MALLOC_..._), or if the C library is not glibc.
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
_DYNAMIC_MAX = 32 << 20  # bytes, up to which glibc adapts by itself: DEFAULT_MMAP_THRESHOLD_MAX on 64 bits
_ARENA = 64 << 20  # bytes of a thread's arena: HEAP_MAX_SIZE on 64 bits
_MAX_BLOCK = 1 << 30  # bytes: twice the value must fit in a C int
_MAX_BLOCK_FRACTION = 16  # one block may have this fraction (1/16) of the machine's memory
_RETAINED_RUNS = 4  # runs whose memory may be free at the same time; with two, memory was still released and faulted in
_HEADER = 4096  # bytes that malloc adds to a block, at most

_large, _free = 0, 0  # the thresholds passed to mallopt; 0 before the first call
_lock = fork_safe_lock()  # guards them: the prefetch thread of the persistent cache calls this module, too


def retain_program_memory(sizes: ProgramSizes) -> None:
    """Raise malloc's thresholds so that the process retains the memory that a program frees."""
    global _large, _free
    mallopt = _function("mallopt")
    if mallopt is None or not settings.TORCH_XLA_KEEP_HEAP or _user_configured_malloc():
        return
    blocks = [size for size in (*sizes.results, sizes.temporary) if size <= _max_block()]
    with _lock:
        large = max([_large, _DYNAMIC_MAX, *blocks])
        free = max(_free, 2 * _DYNAMIC_MAX, min(_RETAINED_RUNS * sizes.extra, 2 * _max_block()))
        if (large, free) != (_large, _free):
            _large, _free = large, free
            mallopt(_MMAP_THRESHOLD, large + _HEADER)
            mallopt(_TRIM_THRESHOLD, free - 1)
            mallopt(_TOP_PAD, _ARENA)


def trim_free_memory() -> None:
    """Return free heap memory to the system."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; None if it is not glibc's."""
    return getattr(ctypes.CDLL(None), name, None)


@functools.cache
def _max_block() -> int:
    return min(_MAX_BLOCK, device_memory.host_memory_limit() // _MAX_BLOCK_FRACTION)


@functools.cache
def _user_configured_malloc() -> bool:
    # The variables that glibc reads at process start.
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tuned
        for name in ("mmap_threshold", "trim_threshold", "mmap_max", "top_pad")
    )
