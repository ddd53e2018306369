"""End all processes of an elastic job when one is lost, with one line that names it; torchelastic then restarts them.

Every rank has a connection to rank 0. The kernel closes the connections of a killed process immediately; that of an
unreachable machine fails after _UNREACHABLE_TIMEOUT seconds. jax's heartbeats notice a lost process only after 100.

    watching --stop_watching--> left             this rank sent BYE: its end is not a loss
    watching --a connection ends without BYE--> rank 0 tells the others which rank was lost; all exit with code 1

Rank 0 prints the line. If rank 0 itself was lost, rank 1 does, unless jax, whose coordinator is in rank 0, ends rank 1
first with a message about the coordination service.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import replicas

#: Seconds: until the connection to a machine that does not answer fails, and that a rank takes to introduce itself.
_UNREACHABLE_TIMEOUT, _HANDSHAKE_TIMEOUT = 10, 30.0
_BYE = b"bye\n"

_is_watching = False  # set once
_lock = fork_safe_lock()
_leaving = threading.Event()  # set once: this process leaves the job in order
_connections: list[socket.socket] = []  # of this process: rank 0 has one for each other rank


def watch_peers(store: dist.Store, host: str) -> None:
    """Start to watch the other ranks of the job, once. ``host`` is rank 0's address. Waits for rank 0."""
    global _is_watching
    with _lock:
        if _is_watching:
            return
        _is_watching = True
    if replicas.process_index() == 0:
        listener = socket.create_server((host if _is_loopback(host) else "", 0), backlog=replicas.process_count())
        token = os.urandom(16).hex()
        store.set("liveness", f"{listener.getsockname()[1]} {token}")
        _start_thread(_Watcher(listener, token).run)
        return
    timeout = timedelta(seconds=settings.TORCH_XLA_RENDEZVOUS_TIMEOUT)
    store.wait(["liveness"], timeout)
    port, token = store.get("liveness").decode().split()
    connection = socket.create_connection((host, int(port)), timeout=_HANDSHAKE_TIMEOUT)
    connection.settimeout(None)
    _keep_alive(connection)
    connection.sendall(f"{token} {replicas.process_index()} {socket.gethostname()}\n".encode())
    _connections.append(connection)
    _start_thread(lambda: _wait_for_loss(connection))


def stop_watching() -> None:
    """Say that this process leaves the job in order. Does nothing where no peers are watched."""
    _leaving.set()
    for connection in tuple(_connections):
        with suppress(OSError):
            connection.sendall(_BYE)


def _start_thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, name="torch_xla liveness", daemon=True).start()


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 4), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_TIMEOUT * 1000)


class _Watcher:
    """Rank 0's end of the connections. Owned by the thread that ``run`` is called in, for the rest of the process."""

    def __init__(self, listener: socket.socket, token: str) -> None:
        self._listener, self._token = listener, token
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._names: dict[socket.socket, str] = {}  # connection -> the rank and its host

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(_HANDSHAKE_TIMEOUT)
        with suppress(OSError, ValueError):
            token, rank, host = connection.makefile().readline().split()
            if token == self._token:
                connection.settimeout(None)
                _keep_alive(connection)
                self._names[connection] = f"rank {int(rank)} of {replicas.process_count()} (on {host})"
                self._selector.register(connection, selectors.EVENT_READ)
                _connections.append(connection)
                return
        connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            received = connection.recv(64)
        except OSError:
            received = b""
        if received and not received.startswith(_BYE):
            return
        name = self._names.pop(connection)
        self._selector.unregister(connection)
        _connections.remove(connection)
        if not received and not _leaving.is_set():
            for other in self._names:
                with suppress(OSError):
                    other.sendall(b"lost\n")
            _exit(name)


def _wait_for_loss(connection: socket.socket) -> None:
    """Wait until rank 0 says that a rank is lost, or is lost itself."""
    try:
        received = connection.recv(64)
    except OSError:
        received = b""
    if received.startswith(_BYE) or _leaving.is_set():
        return
    is_reporter = not received and replicas.process_index() == 1
    _exit(f"rank 0 of {replicas.process_count()}" if is_reporter else None)


def _exit(lost: str | None) -> None:
    """End this process, whose main thread may wait for the lost rank in a collective."""
    if lost is not None:
        sys.stderr.write(f"torch_xla: {lost} was lost: every rank ends, and torchelastic starts the job again\n")
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)
