"""Who takes part in a job: how many replicas there are, and which one this thread drives.

A replica is one device that runs the program which all replicas share. There are two ways to have several:

    processes   a process per device; WORLD_SIZE, RANK, LOCAL_WORLD_SIZE and LOCAL_RANK say so, set by spawn or torchrun
    threads     several devices of one process, a thread each: a Threads names them, and each thread is a member of it

What this module answers it answers from the environment and from the thread's Threads; it starts no backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch_xla._engine.meeting import Meeting
from torch_xla._engine.settings import settings


class _Thread(threading.local):
    """The devices that replicate with this thread's, where their threads meet, and which one this thread drives."""

    devices: tuple[int, ...] = ()
    meeting: Meeting | None = None
    position: int = 0


_thread = _Thread()


class Threads:
    """Devices of this process that a thread each drives as replicas. Lives as long as the threads.

    ``with threads.member(i):`` makes the thread inside the one of ``devices[i]``. When a member leaves, by an error or
    because it is done, those who wait for it at a collective get an error.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = tuple(devices)
        self._meeting = Meeting(len(self.devices))

    @contextmanager
    def member(self, position: int) -> Iterator[None]:
        before = _thread.devices, _thread.meeting, _thread.position
        _thread.devices, _thread.meeting, _thread.position = self.devices, self._meeting, position
        reason = "is done"
        try:
            yield
        except BaseException as error:
            reason = f"failed ({type(error).__name__}: {error})"
            raise
        finally:
            _thread.devices, _thread.meeting, _thread.position = before
            self._meeting.leave(f"the thread of xla:{self.devices[position]} {reason}")


def process_count() -> int:
    """The number of processes of the job; 1 where nothing says how they would find each other."""
    if settings.TORCH_XLA_RENDEZVOUS or (settings.MASTER_ADDR and settings.MASTER_PORT):
        return settings.WORLD_SIZE
    return 1


def process_index() -> int:
    """This process's ordinal. Raises ValueError where RANK is not below WORLD_SIZE."""
    count = process_count()
    if count == 1:
        return 0
    rank = settings.RANK
    if rank >= count:
        raise ValueError(f"environment variable RANK={rank} must be below WORLD_SIZE={count}")
    return rank


def world_size() -> int:
    """The number of replicas of the job, all hosts together; 1 outside of one."""
    return process_count() * max(1, len(_thread.devices))


def global_ordinal() -> int:
    """This replica's ordinal among all, from 0."""
    return process_index() * max(1, len(_thread.devices)) + _thread.position


def local_world_size() -> int:
    """The number of replicas on this machine."""
    return local_process_count() * max(1, len(_thread.devices))


def local_ordinal() -> int:
    """This replica's ordinal among those of this machine, from 0."""
    local = settings.LOCAL_RANK if process_count() > 1 else 0
    return local * max(1, len(_thread.devices)) + _thread.position


def local_process_count() -> int:
    """The number of the job's processes on this machine."""
    return settings.LOCAL_WORLD_SIZE if process_count() > 1 else 1


def local_devices() -> tuple[int, ...]:
    """The devices of this process that replicate with this thread's; empty outside of a Threads."""
    return _thread.devices


def together(given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
    """Meeting.together of the threads that replicate with this one."""
    assert _thread.meeting is not None, "outside of Threads.member"
    return _thread.meeting.together(_thread.position, given, act)
