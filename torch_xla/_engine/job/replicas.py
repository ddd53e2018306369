"""Who takes part in a job: how many replicas there are, and which one this thread drives.

A replica is one device that runs the program which all replicas share. There are two ways to have several:

    processes   a process per device; WORLD_SIZE, RANK, LOCAL_WORLD_SIZE and LOCAL_RANK say so, set by spawn or torchrun
    threads     several devices of one process, a thread each: ``replicate`` names them, and each thread its own

What this module answers it answers from the environment and from ``replicate``; it starts no backend.

With ``use_spmd`` there are no replicas: the script is one program over all devices of the job, whose processes run it
in step, and each of them is ordinal 0 of 1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch_xla._engine.base.settings import Settings, settings


class _Thread(threading.local):
    """The local device ordinals that replicate with this thread's, and which of them this thread drives."""

    devices: tuple[int, ...] = ()
    position: int = 0
    represents: bool = False


_thread = _Thread()

_spmd = False  # for good, once switched on


def use_spmd() -> None:
    """From now on one xla device stands for all devices of the job."""
    global _spmd
    _spmd = True


def is_spmd() -> bool:
    """Whether one xla device stands for all devices of the job."""
    return _spmd


def process_count() -> int:
    """The number of processes of the job; 1 where nothing says how they would find each other.

    Raises ValueError for MASTER_PORT=0 in a job of several.
    """
    if settings.TORCH_XLA_RENDEZVOUS or (settings.MASTER_ADDR and settings.MASTER_PORT):
        return settings.WORLD_SIZE
    if settings.MASTER_ADDR and Settings.MASTER_PORT.source() and settings.WORLD_SIZE > 1:
        raise ValueError(
            f"environment variable MASTER_PORT=0: the {settings.WORLD_SIZE} processes of the job would not know which "
            "port one of them picks. Give torchrun a --master_port that is free on rank 0's machine, or, for a job on "
            "one machine, --standalone"
        )
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
    return 1 if _spmd else process_count() * max(1, len(_thread.devices))


def global_ordinal() -> int:
    """This replica's ordinal among all, from 0."""
    return 0 if _spmd else process_index() * max(1, len(_thread.devices)) + _thread.position


def local_world_size() -> int:
    """The number of replicas on this machine."""
    return 1 if _spmd else local_process_count() * max(1, len(_thread.devices))


def local_ordinal() -> int:
    """This replica's ordinal among those of this machine, from 0."""
    if _spmd:
        return 0
    local = settings.LOCAL_RANK if process_count() > 1 else 0
    return local * max(1, len(_thread.devices)) + _thread.position


def host_group_size() -> int:
    """How many meet where the host waits for others: the replicas, or with SPMD the processes, which run in step."""
    return process_count() if _spmd else world_size()


def host_group_rank(local: bool = False) -> int:
    """Which of those this is, from 0; with ``local`` among those of this machine."""
    if not _spmd:
        return local_ordinal() if local else global_ordinal()
    return (settings.LOCAL_RANK if process_count() > 1 else 0) if local else process_index()


def local_process_count() -> int:
    """The number of the job's processes on this machine."""
    return settings.LOCAL_WORLD_SIZE if process_count() > 1 else 1


def local_devices() -> tuple[int, ...]:
    """The device ordinals of this process that replicate with this thread's; empty outside of ``replicate``."""
    return _thread.devices


@contextmanager
def replicate(devices: Sequence[int], position: int) -> Iterator[None]:
    """In the block this thread drives ``devices[position]``, one of several replicas in this process."""
    before = _thread.devices, _thread.position
    _thread.devices, _thread.position = tuple(devices), position
    try:
        yield
    finally:
        _thread.devices, _thread.position = before


@contextmanager
def simulate_replicas(count: int) -> Iterator[None]:
    """In the block this thread is the first of ``count`` replicas, and stands for the others, which do not exist.

    What they would give in an exchange is what it gives itself. For torch_xla.aot, which looks at programs of many
    chips: all replicas have the same ones.
    """
    with replicate(range(count), 0):
        _thread.represents = True
        try:
            yield
        finally:
            _thread.represents = False


def is_simulating_replicas() -> bool:
    """Whether this thread stands for replicas that do not exist."""
    return _thread.represents
