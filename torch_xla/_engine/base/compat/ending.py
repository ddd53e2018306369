"""The end of a process, and its forks: what Python's own library does in it, and when."""

from __future__ import annotations

import atexit
from typing import Any

from torch_xla._engine.base.compat.private import Private

_SEND = Private(
    "multiprocessing.util",
    "_exit_function",
    "values that are still on their way to other processes are sent before the engine closes",
    "a process that ends right after queue.put() of an xla tensor hangs",
)

_FREE = Private(
    "_thread",
    "LockType._at_fork_reinit",
    "locks that another thread held at a fork are free in the child",
    "a child that was forked beside other threads may hang",
)


def send_queued_values_first() -> None:
    """Has multiprocessing send what is in its queues before any of the functions registered with atexit until now."""
    send = _SEND.find()
    if send is None:
        _SEND.warn()
        return
    atexit.unregister(send)
    atexit.register(send)


def free_lock(lock: Any) -> None:
    """Makes a lock free in a forked child, whoever held it; as logging and threading do with theirs."""
    free = _FREE.find()
    if free is not None:
        free(lock)
