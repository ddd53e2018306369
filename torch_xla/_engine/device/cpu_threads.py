"""Reserve enough threads in XLA's CPU client for a process with several CPU devices.

XLA sizes its pools by the larger of the cores and the devices, and one device can block two threads of a pool: one runs
a program that waits in a collective, the other launches a program and waits because XLA allows 32 launches per device
in flight. If all threads are blocked, the device that the collective waits for gets none, and XLA terminates the
process ("Expected 2 threads to join"). The pools here have a thread for each core in addition to two for each device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: XLA reads the first of these that is set when a client starts.
_VARIABLES = ("NPROC", "PJRT_NPROC")


@contextmanager
def reserve_threads(count: int) -> Iterator[None]:
    """Start CPU clients in the block with enough threads for ``count`` devices; the user's NPROC takes precedence."""
    if count <= 1 or any(name in os.environ for name in _VARIABLES):
        yield
        return
    os.environ["PJRT_NPROC"] = str(_cores() + 2 * count)
    try:
        yield
    finally:
        del os.environ["PJRT_NPROC"]  # do not pass it to child processes


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
