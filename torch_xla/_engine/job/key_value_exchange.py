"""Exchange bytes between the processes of a job through its key-value store: all-gathers, and matches of two peers.

The n-th call of a name on one process belongs to the n-th call of that name on the others. A process deletes its
value of an exchange when the next one of that name is complete: all others have read it then.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import coordination, replicas

#: Seconds after which a waiting process checks whether its peer has ended.
_POLL = 2.0


class PeerTimeoutError(RuntimeError):
    """A process did not arrive at a rendezvous in time, or has ended."""

    def __init__(self, process: int, name: str, ended: bool) -> None:
        why = "has ended" if ended else f"did not arrive within {settings.TORCH_XLA_RENDEZVOUS_TIMEOUT} s"
        super().__init__(f"{name}: rank {process} {why}")
        self.process, self.ended = process, ended


_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def all_gather_bytes(name: str, payload: bytes, processes: Sequence[int]) -> list[bytes]:
    """Return the bytes that each process passed to the n-th all-gather of this name. Raises PeerTimeoutError.

    Each process calls the store a fixed number of times: the last one to arrive announces that all values are there.
    """
    store, me = coordination.coordination_client(), replicas.process_index()
    place = f"torch_xla/{name}/{_group_key(processes)}"
    number = next(_counts[place])
    # The store does not distinguish an empty value from a missing one.
    store.key_value_set_bytes(f"{place}/{number}/values/{me}", b"=" + payload)
    if store.key_value_increment(f"{place}/{number}/count", 1) == len(processes):
        store.key_value_set_bytes(f"{place}/{number}/complete", b"=")
    _wait_for_values(store, f"{place}/{number}", processes)
    values = _read_values(store, f"{place}/{number}")
    if number:
        # All processes have arrived, so all have read the values of the previous all-gather.
        store.key_value_delete(f"{place}/{number - 1}/values/{me}")
        if me == processes[0]:
            store.key_value_delete(f"{place}/{number - 1}/count")
            store.key_value_delete(f"{place}/{number - 1}/complete")
    return [values[process] for process in processes]


def _group_key(processes: Sequence[int]) -> str:
    """Return a short name of a group of processes: each read of all values transfers it once for each of them."""
    listed = ".".join(map(str, processes))
    return listed if len(listed) < 64 else hashlib.sha256(listed.encode()).hexdigest()


def _read_values(store: Any, place: str) -> dict[int, bytes]:
    """Return the values that are there, by process."""
    found = store.key_value_dir_get_bytes(f"{place}/values/")
    return {int(key.rpartition("/")[2]): value[1:] for key, value in found}


_roles: dict[str, str] = {}


def match_peer(name: str, role: str, other: str) -> int:
    """Return the process that takes the role ``other`` in the n-th match in which this process takes ``role``.

    Raises TimeoutError if no process arrives, RuntimeError if a third process takes this role.
    """
    store, me = coordination.coordination_client(), replicas.process_index()
    place = f"torch_xla/{name}"
    number = next(_counts[place])
    try:
        store.key_value_set_bytes(f"{place}/{number}/{role}", str(me).encode())
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
        raise RuntimeError(
            f"{name}: another process already takes the role {role}; exactly two processes must participate"
        ) from error
    found = int(_value_of(store, f"{place}/{number}/{other}", f"no process came to {other}"))
    before, _roles[place] = _roles.get(place), role
    if before is not None:
        # The peer has arrived, so it has read the value of the previous match.
        store.key_value_delete(f"{place}/{number - 1}/{before}")
    return found


def _value_of(store: Any, key: str, missing: str) -> bytes:
    deadline = time.monotonic() + settings.TORCH_XLA_RENDEZVOUS_TIMEOUT
    while True:
        left = deadline - time.monotonic()
        try:
            # Ctrl-C is handled between polls.
            value: bytes = store.blocking_key_value_get_bytes(key, max(1, int(1000 * min(left, _POLL))))
            return value
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            if left <= 0:
                seconds = settings.TORCH_XLA_RENDEZVOUS_TIMEOUT
                raise TimeoutError(f"{missing} within {seconds} s (TORCH_XLA_RENDEZVOUS_TIMEOUT)") from error


def _wait_for_values(store: Any, place: str, processes: Sequence[int]) -> None:
    """Wait until each process has set its value. Raises PeerTimeoutError for one that is late or has ended."""
    deadline, ended = time.monotonic() + settings.TORCH_XLA_RENDEZVOUS_TIMEOUT, False
    while True:
        left = deadline - time.monotonic()
        try:
            store.blocking_key_value_get_bytes(f"{place}/complete", max(1, int(1000 * min(left, _POLL))))
            return
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            present = _read_values(store, place)
            missing = [process for process in processes if process not in present]
            if not missing:
                return  # the last process ended before it announced its value
            gone = [process for process in missing if coordination.has_ended(process)]
            if (ended and gone) or left <= 0:
                raise PeerTimeoutError((gone or missing)[0], place, bool(gone)) from error
            ended = bool(gone)  # and a last poll, as it may just have arrived
