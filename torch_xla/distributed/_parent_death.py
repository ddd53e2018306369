"""The end of a worker when the process that spawned it has died, however it died (Linux).

The kernel can send a signal at the death of the *thread* that started a process. That is the death of the process only
where the thread is its main one: a worker that another thread or a fork server started watches the process itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def can_notify_children(start_method: str) -> bool:
    """Whether the kernel tells processes started here and now of this process's death, and not of a thread's."""
    return start_method != "forkserver" and threading.get_native_id() == os.getpid()


def end_with_parent(parent: int, by_kernel: bool) -> None:
    """Kills this worker when the process ``parent`` dies. ``by_kernel`` is what can_notify_children returned there."""
    if sys.platform != "linux":
        return
    if not by_kernel:
        _watch(parent)
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    handle = multiprocessing.parent_process()
    assert handle is not None
    try:
        watched = os.pidfd_open(parent)
    except OSError:  # the parent has died, or the kernel is older than 5.3: multiprocessing's pipe to the parent closes
        watched = handle.sentinel  # later, as processes that the parent has forked hold it, too
    if not handle.is_alive():  # before it was opened: the id may be another process's by now
        os._exit(1)

    def wait() -> None:
        multiprocessing.connection.wait([watched])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="torch_xla parent watcher", daemon=True).start()
