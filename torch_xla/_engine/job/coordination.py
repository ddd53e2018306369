"""Join and leave a job of several processes: jax.distributed, its coordinator and its key-value store.

    alone -> joined (initialize, at the first use of a device) -> left (shutdown, at exit)

Rank 0 hosts jax's coordinator on a port that it reserves. The other ranks read the address from the store that the
launcher provides: a file (spawn) or torch.distributed's TCPStore (torchrun). A store of torchrun may outlive the
processes, and have the keys of those that it restarted: attempts.py agrees on a prefix.
"""

from __future__ import annotations

import errno
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import jax
import torch.distributed as dist

from torch_xla._engine.base import user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat import distributed
from torch_xla._engine.job import attempts, host_address, liveness, replicas

#: Seconds that a process waits at exit for the others to exit; that rank 0 then waits for them to be gone, as they may
#: still be saving or evaluating; and between polls.
_TOGETHER, _LAST_ONES, _PERIOD = 3.0, 3600.0, 0.05
_PORT_ATTEMPTS = 16

_reserved: socket.socket | None = None
_job_store: dist.Store | None = None
_failed = False
_lock = fork_safe_lock()


def is_initialized() -> bool:
    """Whether this process has joined a multi-process job."""
    return bool(jax.distributed.is_initialized())


def initialize() -> None:
    """Join the job that the environment describes, if any. Waits for all its processes."""
    global _job_store
    with _lock:
        count = replicas.process_count()
        if count == 1 or is_initialized():
            return
        # Retained: outside of torchrun rank 0 hosts the store, and the others may not have read from it yet.
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
                initialization_timeout=settings.TORCH_XLA_RENDEZVOUS_TIMEOUT,
                shutdown_timeout_seconds=0,  # no barrier of all processes: see shutdown
            )
        finally:
            # jax's preemption service intercepts SIGTERM, with which launchers end the processes of a failed job.
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)
        _watch_for_failure()
        distributed.set_gloo_address(_find_loopback() or host_address.local_address_for(_host()), coordination_client())


def job_store() -> dist.Store:
    """Connect to the store that the launcher provides to all processes of the job. Each call opens a new connection.

    In a job that torchelastic may restart, the first call waits for all processes, and starts to watch them.
    """
    if settings.TORCH_XLA_RENDEZVOUS_FILE:
        return dist.FileStore(settings.TORCH_XLA_RENDEZVOUS_FILE, replicas.process_count())
    timeout = timedelta(seconds=settings.TORCH_XLA_RENDEZVOUS_TIMEOUT)
    meeting = dist.rendezvous("env://", replicas.process_index(), replicas.process_count(), timeout=timeout)
    store: dist.Store = next(meeting)[0]
    if replicas.is_elastic():
        store = attempts.add_attempt_prefix(store, timeout)
        liveness.watch_peers(store, _find_loopback() or _host())
    return store


def _agree_on_address(store: dist.Store) -> str:
    """Agree on the coordinator's address, and wait for all processes.

    jax's own rendezvous terminates the process, in C++, if a peer does not arrive in time.
    """
    store = dist.PrefixStore("torch_xla", store)
    mine, count = replicas.process_index(), replicas.process_count()
    if mine == 0:
        # A numeric address if it is loopback: grpc's resolver may resolve a name differently.
        store.set("coordinator", f"{_bracket(_find_loopback() or _host())}:{reserve_port()}")
    store.set(f"here/{mine}", "")
    everyone = [f"here/{rank}" for rank in range(count)]
    try:
        store.wait(everyone, timedelta(seconds=settings.TORCH_XLA_RENDEZVOUS_TIMEOUT))
    except RuntimeError as error:  # each type of store raises its own error
        missing = [rank for rank in range(count) if not store.check([everyone[rank]])]
        if not missing:
            raise
        raise RuntimeError(
            f"rank {mine} waited {settings.TORCH_XLA_RENDEZVOUS_TIMEOUT} s (TORCH_XLA_RENDEZVOUS_TIMEOUT) for "
            f"rank {', '.join(map(str, missing))} of {count} to use its xla device, at {user_frames.user_line()}; all "
            "ranks must use a device: its first use is a rendezvous"
        ) from error
    return str(store.get("coordinator").decode())


def _host() -> str:
    return "127.0.0.1" if settings.TORCH_XLA_RENDEZVOUS_FILE else settings.MASTER_ADDR


def _bind_address(address: str) -> str | None:
    """Return the address that rank 0 binds: loopback for a job on one machine, else jax's default, all interfaces."""
    host, port = address.rsplit(":", 1)
    return f"{host if _find_loopback() else '0.0.0.0'}:{port}"


def _find_loopback() -> str | None:
    """Return the loopback address of a one-machine job; None if it uses a network (host_address.loopback_for)."""
    return host_address.loopback_for(_host(), all_here=replicas.process_count() == settings.LOCAL_WORLD_SIZE)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _visible_devices() -> list[int] | None:
    """Return the GPU of this process; jax ignores it on other hardware."""
    return [settings.LOCAL_RANK]


def reserve_port(candidates: Iterable[int] = (0,) * _PORT_ATTEMPTS) -> int:
    """Reserve a TCP port for the coordinator until this process ends; 0 means any free port.

    The socket that reserves the port never listens: with SO_REUSEPORT the coordinator may, and receives all
    connections. Raises OSError if every candidate is in use.
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
    raise OSError(errno.EADDRINUSE, f"torch_xla: could not reserve a port for the job's coordinator; in use: {tried}")


def _current_handler() -> Any:
    """Return SIGTERM's handler, or None outside the main thread, which cannot restore it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.getsignal(signal.SIGTERM)


def coordination_client() -> Any:
    """Return the client of the job's key-value store. Raises RuntimeError outside a job."""
    found = distributed.coordination_client()
    if found is None:
        raise RuntimeError("torch_xla: this process has not joined a job of several processes")
    return found


def has_ended(process: int) -> bool:
    """Return whether a process of the job has announced its exit."""
    return _job_store is not None and _job_store.check([f"torch_xla/ending/{process}"])


def _watch_for_failure() -> None:
    earlier = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        global _failed
        _failed = True
        earlier(kind, error, at)

    sys.excepthook = hook


def exited_with_error() -> bool:
    """Whether this process has joined a job and exits because of an exception."""
    return _failed and is_initialized()


def shutdown() -> None:
    """Leave the job: within seconds, or on rank 0, which the others need, after they have left. No-op outside a job."""
    global _reserved
    if is_initialized():
        assert _job_store is not None
        rank, others = replicas.process_index(), range(1, replicas.process_count())
        _job_store.set(f"torch_xla/ending/{rank}", "")
        _wait_until_all(_job_store, "ending", (0, *others), _TOGETHER)
        liveness.stop_watching()  # before any rank exits: the others would take it for lost
        if rank == 0:
            _wait_until_all(_job_store, "left", others, _LAST_ONES)
        jax.distributed.shutdown()
        notify_exit()
    liveness.stop_watching()
    if _reserved is not None:
        _reserved.close()
        _reserved = None


def notify_exit() -> None:
    """Announce the exit: rank 0 no longer waits for this process."""
    if _job_store is not None and replicas.process_index():
        with suppress(RuntimeError):  # the store ends with rank 0, or with the launcher
            _job_store.set(f"torch_xla/left/{replicas.process_index()}", "")


def _wait_until_all(store: dist.Store, state: str, processes: Iterable[int], patience: float) -> None:
    names = [f"torch_xla/{state}/{process}" for process in processes]
    deadline = time.monotonic() + patience
    while not store.check(names) and time.monotonic() < deadline:
        time.sleep(_PERIOD)
