"""How many CPUs this process may use, and the number of threads of XLA's CPU client.

XLA sizes its pools by the larger of the cores and the devices, and does not know the quota of a control group: threads
beyond it use up the quota early and then all wait for the next period. One device can block two threads of a pool:
one runs a program that waits in a collective, the other launches a program and waits because XLA allows 32 launches per
device in flight. If all threads are blocked, the device that the collective waits for gets none, and XLA terminates the
process ("Expected 2 threads to join"). So a client has a thread for each CPU and, for several devices, two for each.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

#: XLA reads the first of these that is set when a client starts.
_VARIABLES = ("NPROC", "PJRT_NPROC")

_PERIOD = 1.0  # seconds for which a count is used; reading files at each launch would delay it

_counted: tuple[float, int] = (-math.inf, 0)  # time and result of the last count
_has_threads = False  # whether this process had more than one thread at its last fork
_forking_thread: int | None = None  # the thread that forked this process, if it is a fork of one with several threads
_threads_before: int | None = None  # torch's thread count in that thread before leave_inherited_team


@contextmanager
def limit_client_threads(devices: int) -> Iterator[None]:
    """Start CPU clients in the block with threads for this process's CPUs and devices; NPROC takes precedence."""
    cpus = usable_cpus()
    if any(name in os.environ for name in _VARIABLES) or (devices <= 1 and cpus == _cores()):
        yield
        return
    os.environ["PJRT_NPROC"] = str(cpus + (2 * devices if devices > 1 else 0))
    try:
        yield
    finally:
        del os.environ["PJRT_NPROC"]  # do not pass it to child processes


def usable_cpus() -> int:
    """Return the CPUs that the calling thread may use: its affinity and the quota of its control group, rounded up.

    Both may change while the process runs: the count is at most a second old.
    """
    global _counted
    now, (counted_at, cpus) = time.monotonic(), _counted
    if now - counted_at > _PERIOD:
        cpus = math.ceil(min(_cores(), cgroup_quota()))
        _counted = now, cpus
    return cpus


def kernel_threads() -> int:
    """Return the thread count for kernels: torch's in this thread, or the CPUs that it may use if these are fewer."""
    requested = torch.get_num_threads()
    if has_inherited_team() and requested == 1 and _threads_before is not None:
        requested = _threads_before
    return min(requested, usable_cpus())


def has_inherited_team() -> bool:
    """Return whether the calling thread forked this process and may have an OpenMP team whose threads are not here.

    OpenMP does not tell which threads have teams. A parent without other threads has none.
    """
    return threading.get_ident() == _forking_thread


def leave_inherited_team() -> None:
    """Let ATen's loops in the calling thread run serially, if it forked this process. Other threads make new teams.

    GNU's OpenMP would wait for the threads of a team that stayed in the parent, in a parallel loop. torch's
    ``DataLoader`` limits its workers in the same way.
    """
    global _threads_before
    if has_inherited_team() and _threads_before is None:
        _threads_before = torch.get_num_threads()
        torch.set_num_threads(1)


def _before_fork() -> None:
    global _has_threads
    _has_threads = len(os.listdir("/proc/self/task")) > 1


def _after_fork() -> None:
    global _forking_thread, _threads_before
    if not has_inherited_team():  # a team of the parent's parent stays one
        _forking_thread, _threads_before = threading.get_ident() if _has_threads else None, None


if Path("/proc/self/task").exists():  # Linux, whose compilers come with GNU's OpenMP; LLVM's is safe to fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def cgroup_quota(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPUs' worth of time that the control groups of this process allow it; infinity if unlimited."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 1 has a folder for each set of controllers. A container may see only its own group, as the root.
        root = mount / controllers
        group = root / path.lstrip("/")
        quotas += [_read_quota(folder) for folder in (group, *group.parents) if folder.is_relative_to(root)]
    return min(quotas)


def _read_quota(group: Path) -> float:
    try:
        if (limits := group / "cpu.max").exists():
            quota, period = limits.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError):  # no such group, or "max"
        return math.inf


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
