"""How the processes of a job find each other and talk: jax.distributed, its key-value store and its barriers.

    alone -> joined (by join, at the first use of a device) -> left (at the interpreter's exit)

Rank 0 hosts jax's coordinator on a port that it picks and keeps; the others learn the address from the store that the
launcher gave them all: a file (spawn) or torch.distributed's TCPStore (torchrun). A process that ends well waits at its
exit for all others to end; one that ends by an exception must not, as they may be waiting for it.
(The client of jax.distributed is private to jax; checked on jax 0.10.2.)
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import jax
import torch.distributed as dist

from torch_xla._engine import replicas
from torch_xla._engine.settings import settings

#: How long a process that has ended well waits for the others, in seconds: rank 0 may still be saving or evaluating.
_SHUTDOWN_TIMEOUT = 3600
_PORT_ATTEMPTS = 16

_reserved: socket.socket | None = None
_job_store: dist.Store | None = None
_failed = False
_lock = threading.Lock()


def joined() -> bool:
    """Whether this process has joined a job of several."""
    return bool(jax.distributed.is_initialized())


def join() -> None:
    """Joins the job that the environment describes; nothing where it describes none. Waits for all its processes."""
    global _job_store
    with _lock:
        count = replicas.process_count()
        if count == 1 or joined():
            return
        # Kept: outside of torchrun rank 0 hosts the store, and the others may not have read from it yet.
        _job_store = job_store()
        address = _agree_on_address(_job_store)
        handler = _current_handler()
        try:
            jax.distributed.initialize(
                address,
                count,
                replicas.process_index(),
                local_device_ids=_visible_devices(),
                cluster_detection_method="deactivate",
                coordinator_bind_address=_bind_address(address),
                initialization_timeout=settings.XLA_RENDEZVOUS_TIMEOUT,
                shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
            )
        finally:
            # jax's preemption service swallows SIGTERM, by which launchers end the processes of a failed job.
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        _watch_for_failure()


def job_store() -> dist.Store:
    """The store that the launcher gave to all processes of the job. Each call connects anew."""
    if settings.TORCH_XLA_RENDEZVOUS:
        return dist.FileStore(settings.TORCH_XLA_RENDEZVOUS, replicas.process_count())
    timeout = timedelta(seconds=settings.XLA_RENDEZVOUS_TIMEOUT)
    meeting = dist.rendezvous("env://", replicas.process_index(), replicas.process_count(), timeout=timeout)
    store: dist.Store = next(meeting)[0]
    return store


def _agree_on_address(store: dist.Store) -> str:
    store = dist.PrefixStore("torch_xla", store)
    if replicas.process_index() == 0:
        store.set("coordinator", f"{_host()}:{reserve_port()}")
    return str(store.get("coordinator").decode())


def _host() -> str:
    return "127.0.0.1" if settings.TORCH_XLA_RENDEZVOUS else settings.MASTER_ADDR


def _bind_address(address: str) -> str | None:
    """Where rank 0 listens: on this machine alone if the job is; else jax's default, all interfaces."""
    port = address.rsplit(":", 1)[1]
    return f"127.0.0.1:{port}" if _host() == "127.0.0.1" else f"0.0.0.0:{port}"


def _visible_devices() -> list[int] | None:
    """The GPU of this process; on other hardware jax ignores it."""
    return [settings.LOCAL_RANK]


def reserve_port(candidates: Iterable[int] = (0,) * _PORT_ATTEMPTS) -> int:
    """A TCP port for the coordinator, kept from others until this process ends; 0 stands for any free one.

    The socket that keeps it never listens: with SO_REUSEPORT the coordinator may, and connections go to it alone.
    Raises OSError where every candidate is in use.
    """
    global _reserved
    tried = []
    for port in candidates:
        keeper = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            keeper.bind(("", port))
        except OSError as error:
            keeper.close()
            if error.errno != errno.EADDRINUSE:
                raise
            tried.append(port)
            continue
        _reserved = keeper
        return int(keeper.getsockname()[1])
    raise OSError(errno.EADDRINUSE, f"torch_xla: no port for the coordinator of the job; in use: {tried}")


def _current_handler() -> Any:
    """SIGTERM's handler, None where only the main thread could restore it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.getsignal(signal.SIGTERM)


def client() -> Any:
    """The client of the job's key-value store. RuntimeError outside of a job."""
    from jax._src.distributed import global_state

    if global_state.client is None:
        raise RuntimeError("torch_xla: this process has not joined a job of several processes")
    return global_state.client


class Late(RuntimeError):
    """A process that others waited for has not come in time."""

    def __init__(self, process: int, name: str) -> None:
        super().__init__(f"rank {process} has not come to {name} within {settings.XLA_RENDEZVOUS_TIMEOUT} s")
        self.process = process


_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def exchange(name: str, payload: bytes, processes: Sequence[int]) -> list[bytes]:
    """What each of the processes gave at their n-th exchange of this name, in order. Raises Late."""
    store, me = client(), replicas.process_index()
    place = f"torch_xla/{name}/{'.'.join(map(str, processes))}"
    number = next(_counts[place])
    # A value may be empty, which the store does not tell from a missing one.
    store.key_value_set_bytes(f"{place}/{number}/{me}", b"=" + payload)
    values = [_wait_for(store, f"{place}/{number}/{process}", process) for process in processes]
    if number:
        # All have come here, so all have read what was given at the exchange before.
        store.key_value_delete(f"{place}/{number - 1}/{me}")
    return values


def _wait_for(store: Any, key: str, process: int) -> bytes:
    try:
        value: bytes = store.blocking_key_value_get_bytes(key, settings.XLA_RENDEZVOUS_TIMEOUT * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise Late(process, key) from error
    return value[1:]


def _watch_for_failure() -> None:
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        global _failed
        _failed = True
        earlier(kind, error, at)

    sys.excepthook = hook


def part() -> None:
    """Leaves the job in good order: returns when all its processes have called it. Nothing outside of a job."""
    global _reserved
    if joined():
        jax.distributed.shutdown()
    if _reserved is not None:
        _reserved.close()
        _reserved = None


def leave() -> None:
    """At exit: waits for the job's other processes; one that ends by an exception ends here without waiting."""
    if _failed and joined():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    part()
