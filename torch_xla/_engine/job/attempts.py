"""Agree on a prefix for the keys of this attempt of a job, in a store that may outlive its processes.

torchrun's agents restart the processes of a job, by default with the same store: it has the keys of processes that have
ended. So rank 0 names the attempt, and answers only processes that are alive:

    rank r: takes ticket n               rank 0: answer/n = ATTEMPT, for each ticket
    rank r: reads answer/n               rank 0: waits for ATTEMPT/here/r of every r
    rank r: ATTEMPT/here/r

A ticket of an ended process is answered, too, to no effect.
"""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import torch.distributed as dist

from torch_xla._engine.base import user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import replicas

_POLL_INTERVAL = 0.02  # seconds

_attempt: str | None = None  # of this process; set once
_lock = fork_safe_lock()


def add_attempt_prefix(store: dist.Store, timeout: timedelta) -> dist.Store:
    """Return the store with the prefix of this attempt; the first call of a process waits for all ranks.

    Raises RuntimeError, which names the missing ranks, after the timeout.
    """
    global _attempt
    with _lock:
        if _attempt is None:
            tickets = dist.PrefixStore("torch_xla/attempts", store)
            _attempt = (
                _serve_tickets(tickets, timeout)
                if replicas.process_index() == 0
                else _request_attempt(tickets, timeout)
            )
    return dist.PrefixStore(f"torch_xla/{_attempt}", store)


def _request_attempt(store: dist.Store, timeout: timedelta) -> str:
    ticket = store.add("tickets", 1)
    try:
        store.wait([f"answer/{ticket}"], timeout)
    except RuntimeError as error:
        raise _missing_error([0]) from error
    attempt = str(store.get(f"answer/{ticket}").decode())
    store.set(f"{attempt}/here/{replicas.process_index()}", "")
    return attempt


def _serve_tickets(store: dist.Store, timeout: timedelta) -> str:
    attempt, answered = uuid.uuid4().hex, 0
    here = [f"{attempt}/here/{rank}" for rank in range(1, replicas.process_count())]
    deadline = time.monotonic() + timeout.total_seconds()
    while not store.check(here):
        given = store.add("tickets", 0)
        for ticket in range(answered + 1, given + 1):
            store.set(f"answer/{ticket}", attempt)
        answered = given
        if time.monotonic() > deadline:
            raise _missing_error([rank for rank, key in enumerate(here, 1) if not store.check([key])])
        time.sleep(_POLL_INTERVAL)
    return attempt


def _missing_error(ranks: list[int]) -> RuntimeError:
    return RuntimeError(
        f"rank {replicas.process_index()} waited {settings.TORCH_XLA_RENDEZVOUS_TIMEOUT} s "
        f"(TORCH_XLA_RENDEZVOUS_TIMEOUT) for rank {', '.join(map(str, ranks))} of {replicas.process_count()} to use "
        f"its xla device, at {user_frames.user_line()}; all ranks must use a device: its first use is a rendezvous"
    )
