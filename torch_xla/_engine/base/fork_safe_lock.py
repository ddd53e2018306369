"""Locks of the life of the process, which a forked child has free.

A child has the forking thread only: a lock that another thread held at that moment would stay taken in it for good.
What such a lock guards is whole even then, since a thread of Python forks with the GIL and tables change in single
calls of Python's.
"""

from __future__ import annotations

import os
import threading
import weakref

from torch_xla._engine.compat import process_exit

_all: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """A new lock, free again in each forked child."""
    lock = threading.Lock()
    _all.add(lock)
    return lock


def _reset_all() -> None:
    for lock in list(_all):
        # Not a new lock within a wrapper, which could be interrupted between taking it and noting that it is taken.
        process_exit.reset_lock(lock)


os.register_at_fork(after_in_child=_reset_all)
