"""The replicas of a job: world size, ordinals, and the replica that the current thread drives.

A replica is one device that runs the program that all replicas share. There are two ways to have several:

    processes   one process per device; spawn or torchrun set WORLD_SIZE, RANK, LOCAL_WORLD_SIZE and LOCAL_RANK
    threads     several devices of one process, one thread each: ``replicate`` sets devices and position

This module reads only the environment and the arguments of ``replicate``; it starts no backend.

With ``use_spmd`` there are no replicas: the script is one program over all devices of the job. The processes run it in
lockstep, and each has ordinal 0 of world size 1.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch_xla._engine.base.settings import Settings, settings


class _Thread(threading.local):
    """The local device ordinals of this thread's replica group, and the position of this thread in it."""

    devices: tuple[int, ...] = ()
    position: int = 0
    represents: bool = False


_thread = _Thread()

_spmd = False  # never reset once set


def use_spmd() -> None:
    """Make one xla device represent all devices of the job, permanently."""
    global _spmd
    _spmd = True


def is_spmd() -> bool:
    """Whether one xla device represents all devices of the job."""
    return _spmd


def process_count() -> int:
    """Return the number of processes of the job; 1 if the environment names no rendezvous.

    Raises ValueError for MASTER_PORT=0 in a job of several processes.
    """
    if settings.TORCH_XLA_RENDEZVOUS_FILE or (settings.MASTER_ADDR and settings.MASTER_PORT):
        return settings.WORLD_SIZE
    if settings.MASTER_ADDR and Settings.MASTER_PORT.source() and settings.WORLD_SIZE > 1:
        raise ValueError(
            f"environment variable MASTER_PORT=0: the {settings.WORLD_SIZE} processes of the job cannot agree on a "
            "port. Pass torchrun a --master_port that is free on rank 0's machine, or --standalone for a job on one "
            "machine"
        )
    return 1


def is_elastic() -> bool:
    """Whether torchelastic (torchrun --max-restarts) restarts the processes of this job when one is lost."""
    return settings.TORCHELASTIC_MAX_RESTARTS > 0 and not settings.TORCH_XLA_RENDEZVOUS_FILE and process_count() > 1


def process_index() -> int:
    """Return the rank of this process. Raises ValueError if RANK is not below WORLD_SIZE."""
    count = process_count()
    if count == 1:
        return 0
    rank = settings.RANK
    if rank >= count:
        raise ValueError(f"environment variable RANK={rank} must be below WORLD_SIZE={count}")
    return rank


def world_size() -> int:
    """Return the number of replicas of the job on all hosts; 1 outside a job."""
    return 1 if _spmd else process_count() * max(1, len(_thread.devices))


def global_ordinal() -> int:
    """Return the global ordinal of this replica."""
    return 0 if _spmd else process_index() * max(1, len(_thread.devices)) + _thread.position


def local_world_size() -> int:
    """Return the number of replicas on this machine."""
    return 1 if _spmd else local_process_count() * max(1, len(_thread.devices))


def local_ordinal() -> int:
    """Return the ordinal of this replica among those of this machine."""
    if _spmd:
        return 0
    return local_process_index() * max(1, len(_thread.devices)) + _thread.position


def host_group_size() -> int:
    """Return the size of the host group: the number of replicas, or with SPMD the number of processes."""
    return process_count() if _spmd else world_size()


def host_group_rank(local: bool = False) -> int:
    """Return the rank within the host group; with ``local`` within the members on this machine."""
    if not _spmd:
        return local_ordinal() if local else global_ordinal()
    return local_process_index() if local else process_index()


def local_process_count() -> int:
    """Return the number of the job's processes on this machine."""
    return settings.LOCAL_WORLD_SIZE if process_count() > 1 else 1


def local_process_index() -> int:
    """Return the index of this process among the job's processes on this machine."""
    return settings.LOCAL_RANK if process_count() > 1 else 0


def local_devices() -> tuple[int, ...]:
    """Return the device ordinals of this thread's replica group; empty outside of ``replicate``."""
    return _thread.devices


@contextmanager
def replicate(devices: Sequence[int], position: int) -> Iterator[None]:
    """In the block, make this thread drive ``devices[position]``, one of several replicas in this process."""
    before = _thread.devices, _thread.position
    _thread.devices, _thread.position = tuple(devices), position
    try:
        yield
    finally:
        _thread.devices, _thread.position = before


@contextmanager
def simulate_replicas(count: int) -> Iterator[None]:
    """In the block, make this thread the first of ``count`` replicas, and simulate the others, which do not exist.

    In a collective, each simulated replica contributes what this thread contributes. Used by torch_xla.aot for programs
    of many chips: all replicas have equal programs.
    """
    with replicate(range(count), 0):
        _thread.represents = True
        try:
            yield
        finally:
            _thread.represents = False


def is_simulating_replicas() -> bool:
    """Whether this thread simulates replicas that do not exist."""
    return _thread.represents
