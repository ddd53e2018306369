"""How many threads XLA's CPU client starts where one process has several CPU devices.

XLA sizes its pools by the larger of the cores and the devices, and one device can block two threads of a pool: one runs
a program that waits in a collective, the other launches a program and waits because XLA lets 32 of a device be in
flight. Where that takes all threads, the device that the collective waits for gets none, and XLA ends the process
("Expected 2 threads to join"). The pools here have a thread for each core on top of two for each device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: XLA reads the first of them that is set, when a client starts.
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
        del os.environ["PJRT_NPROC"]  # not for processes that this one starts


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
