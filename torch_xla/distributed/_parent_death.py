"""Kill a worker when the process that spawned it dies, however it dies (Linux).

The kernel can send a signal at the death of the *thread* that started a process (PR_SET_PDEATHSIG). That is the death
of the process only for its main thread: a worker that another thread or a fork server started monitors the process
instead.
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
    """Return whether the kernel notifies processes that are started now of this process's death, not a thread's."""
    return start_method != "forkserver" and threading.get_native_id() == os.getpid()


def end_with_parent(parent: int, by_kernel: bool) -> None:
    """Kill this worker when the process ``parent`` dies. ``by_kernel``: the parent's can_notify_children()."""
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
    except OSError:  # the parent has died, or the kernel is older than 5.3: wait for multiprocessing's pipe to the
        watched = handle.sentinel  # parent, which closes later, as processes that the parent has forked hold it, too
    if not handle.is_alive():  # it died before it was opened: the pid may belong to another process by now
        os._exit(1)

    def wait() -> None:
        multiprocessing.connection.wait([watched])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="torch_xla parent monitor", daemon=True).start()
