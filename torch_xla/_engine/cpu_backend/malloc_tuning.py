"""malloc tuning: two constants for glibc, set once, at the first compilation of a CPU program.

XLA allocates a program's memory from the process heap. glibc maps large blocks separately and returns them, and free
memory at the top of the heap, to the system, which has to fault in and zero the pages at the next run: much of the
processor time of a small transformer's step. glibc adapts to freed blocks, of up to 32 MB only. Here the bounds are
64 MB from the start, so the user's own freed arrays stay resident up to the same bound:

    a freed block     above 64 MB: returned to the system; else part of the free memory of its heap
    free memory       at the end of a heap: up to 64 MB stay resident

Other threads, such as XLA's and the kernel thread, have heaps of 64 MB (arenas), which glibc releases once they are
unused, whatever the threshold; M_TOP_PAD prevents that. TORCH_XLA_KEEP_HEAP=0 turns all of this off. Nothing is changed
if the user has configured malloc (GLIBC_TUNABLES, MALLOC_..._), or if the C library is not glibc.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from torch_xla._engine.base.settings import settings

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # M_..., in glibc's malloc.h
_LARGEST_BLOCK = 64 << 20  # bytes: above the activations of a small transformer; 32 MB, glibc's bound, is not
_FREE_MEMORY = 64 << 20  # bytes: HEAP_MAX_SIZE of an arena


@functools.cache
def retain_free_memory() -> None:
    """Make malloc retain the memory that programs free between two runs."""
    mallopt = _function("mallopt")
    if mallopt is not None and settings.TORCH_XLA_KEEP_HEAP and not _user_configured_malloc():
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _FREE_MEMORY)
        mallopt(_TOP_PAD, _FREE_MEMORY)


def trim_free_memory() -> None:
    """Return free heap memory to the system."""
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; None if it is not glibc's."""
    return getattr(ctypes.CDLL(None), name, None)


def _user_configured_malloc() -> bool:
    # The variables that glibc reads at process start.
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tuned
        for name in ("mmap_threshold", "trim_threshold", "mmap_max", "top_pad")
    )
