"""Process-lifetime locks that are released in forked children.

A forked child only has the forking thread: a lock that another thread held at the fork would stay locked forever. The
data that such a lock guards is consistent even then: a Python thread forks while it holds the GIL, and tables change in
single Python calls.
"""

from __future__ import annotations

import os
import threading
import weakref

from torch_xla._engine.compat import process_exit

_all: weakref.WeakSet[threading.Lock] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """Return a new lock that is unlocked in each forked child."""
    lock = threading.Lock()
    _all.add(lock)
    return lock


def _reset_all() -> None:
    for lock in list(_all):
        # Not a wrapper around a new lock: it could be interrupted between acquiring the lock and recording that.
        process_exit.reset_lock(lock)


os.register_at_fork(after_in_child=_reset_all)
