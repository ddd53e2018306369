"""Runs test scripts in forks of a process that has imported torch, jax and torch_xla.

Importing takes five seconds, a fork a few milliseconds. The process starts no backend and no thread, so a child is
equivalent to an interpreter that has just imported them: it has its own settings, devices and atexit handlers. See
``Server`` in scripts.py, which starts this process, and forked_python.py. A second process, forked before torch_xla
was imported, does the same for scripts with variables that torch_xla reads while it is imported, or reports: the import
checks all settings (settings_check.py), and this process repeats the check for each request.

A client connects and sends a Request, with the child's descriptors 0, 1 and 2 and, optionally, its network namespace.
It receives the child's id, and its exit code when it ends; or ``no`` if a fork cannot replace an interpreter. The
server kills the child of a client that disconnects.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import json
import linecache
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

#: Variables that libraries read in C when they are loaded, which cannot be observed.
_READ_IN_C = ("DNNL_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LC_", "LD_", "MALLOC_", "MKL", "NPY_", "OMP_", "ONEDNN_",
              "OPENBLAS_", "PYTHON", "PYTORCH_", "TF_", "TORCH_CPP_", "TORCH_SHOW_", "TZ")  # fmt: skip

#: Variables that importing reads for a bound, or checks, and that are read again when they are needed (there is room
#: for eight devices in any case); variables that shells and scripts.environment set for all children, which count as
#: read because some library copies all variables.
_READ_AGAIN = {
    "CPU_NUM_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OLDPWD", "PWD", "RANK", "SHLVL",
    "WORLD_SIZE", "XLA_FLAGS", "XLA_PERSISTENT_CACHE_PATH", "_",
}  # fmt: skip

#: Variables that launchers set for their processes: a child applies them after the fork.
_APPLIED_LATER = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"}

_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Request:
    """The words after ``python`` on a command line, the working folder, and the full environment."""

    words: list[str]
    folder: str
    environment: dict[str, str]


@contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """Record the environment variables that Python code reads in the block."""
    kind, seen = type(os.environ), set[str]()
    original = kind.__getitem__

    def noting(self: os._Environ[str], name: str) -> str:
        seen.add(name if isinstance(name, str) else os.fsdecode(name))
        return original(self, name)

    kind.__getitem__ = noting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        kind.__getitem__ = original  # type: ignore[method-assign]


def _enter(request: Request, changes: dict[str, str | None], received: list[int]) -> None:
    """Set up the child's streams, network namespace, folder and environment."""
    for stream, number in zip(received, (0, 1, 2), strict=False):
        os.dup2(stream, number)
    for network in received[3:]:
        if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
            _call_setns(network)
    for descriptor in received:
        os.close(descriptor)
    os.chdir(request.folder)
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.modules["numpy"].random.seed()  # as at its import; Python reseeds its own generator
    if changes.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if changes.get("PYTHONUNBUFFERED"):
        for text in (sys.stdout, sys.stderr):
            text.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _is_reported_at_import(environment: dict[str, str]) -> bool:
    """Check an environment as the import of torch_xla checks it: the import reads all settings, but only to report."""
    check = sys.modules.get("torch_xla._engine.base.settings_check")
    return check is not None and any((*check.invalid_values(environment), *check.unknown_variables(environment)))


def _fork() -> int:
    """Call os.fork without Python's warning (3.12 and later): BLAS has threads, which handle forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _call_setns(namespace: int) -> None:
    """Call setns, which os does not have in Python 3.11."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@dataclass
class _Child:
    pid: int
    pidfd: int
    client: socket.socket


class _Server:
    def __init__(self, alive: socket.socket, listener: socket.socket, before: dict[str, str], read: set[str]) -> None:
        self.alive, self.listener, self.before, self.read = alive, listener, before, read
        self.selector = selectors.DefaultSelector()
        for descriptor in (alive, listener):
            self.selector.register(descriptor, selectors.EVENT_READ)
        self.children: dict[int, _Child] = {}  # by pidfd and by the client's descriptor

    def serve(self) -> Request:
        """Fork for each request, and return in the children. The server exits when its owner does."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.alive:
                    os._exit(0)
                if key.fileobj is self.listener:
                    request = self.answer()
                    if request is not None:
                        return request
                elif key.fd in self.children:  # not if both events arrived together, and the first one ended the child
                    self.end(self.children[key.fd], gone=key.fd == self.children[key.fd].client.fileno())

    def answer(self) -> Request | None:
        """Handle the next client's request: return the request in the child, None in the server."""
        client, _ = self.listener.accept()
        message, received, _, _ = socket.recv_fds(client, 1 << 20, 4)
        if not message:  # the client disconnected between two calls
            client.close()
            return None
        request = Request(**json.loads(message))
        changes = self.differences(request.environment)
        pid = 0
        if changes is not None:
            pid = _fork()
            if pid == 0:
                self.close()
                client.close()
                _enter(request, changes, received)
                return request
        for descriptor in received:
            os.close(descriptor)
        self.tell(client, f"{pid or 'no'}\n")
        if pid == 0:
            client.close()
            return None
        child = _Child(pid, os.pidfd_open(pid), client)
        for descriptor in (child.pidfd, client.fileno()):
            self.children[descriptor] = child
            self.selector.register(descriptor, selectors.EVENT_READ)
        return None

    def differences(self, environment: dict[str, str]) -> dict[str, str | None] | None:
        """Return the changes to get this environment; None if importing depends on one of the variables."""
        changes: dict[str, str | None] = {}
        for name in environment.keys() | self.before.keys():
            value = environment.get(name)
            if value != self.before.get(name) and value != os.environ.get(name):  # unchanged, or as importing sets it
                changes[name] = value
        for name in changes.keys() - _APPLIED_LATER:
            if name in self.read or name.startswith(_READ_IN_C):
                return None
        return None if _is_reported_at_import(environment) else changes

    def end(self, child: _Child, gone: bool) -> None:
        """Handle a child that has ended, or end it because its client is ``gone``."""
        if gone:
            os.kill(child.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self.tell(child.client, f"{code}\n")
        for descriptor in (child.pidfd, child.client.fileno()):
            self.selector.unregister(descriptor)
            del self.children[descriptor]
        os.close(child.pidfd)
        child.client.close()

    @staticmethod
    def tell(client: socket.socket, text: str) -> None:
        with suppress(OSError):  # the client has disconnected
            client.send(text.encode())

    def close(self) -> None:
        """In a child, close the descriptors of the server."""
        self.selector.close()
        self.alive.close()
        self.listener.close()
        for descriptor, child in self.children.items():
            if descriptor == child.pidfd:
                os.close(descriptor)
                child.client.close()


def _run(words: list[str]) -> None:
    """Run a command line as ``python`` does; end the process, or return if the interpreter itself must shut down."""
    # A new module: imported objects, names of the old module included, are frozen and would not be freed at the end.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins, __loader__=importlib.machinery.BuiltinImporter)
    try:
        if words[:2] == ["-W", "error"]:  # as the server was started
            while words[0] == "-W":
                words = words[2:]
        else:
            _warn_as_usual()
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            code = compile(words[1], "<string>", "exec", dont_inherit=True)
            if sys.version_info >= (3, 13):  # the interpreter registers the lines of -c for tracebacks
                linecache._register_code(code, words[1], "<string>")
                lines = [f"{line}\n" for line in words[1].splitlines()]
                linecache.cache["<string>"] = (len(words[1]), None, lines, "<string>")  # where 3.13.0 finds them
            exec(code, main.__dict__)
        elif words[0] == "-m":
            sys.argv = words[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            _run_file(words, main)
        _end(main, 0)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            _end(main, error.code or 0)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        del error
        _end(main, 1)
        sys.exit(1)


def _end(main: types.ModuleType, code: int) -> None:
    """End the process: wait for threads, run the atexit handlers, free the program's own objects.

    An interpreter also frees what was imported, which takes half a second, most of the cost of a fork. Returns in a
    program that has called ``gc.unfreeze()`` to test interpreter shutdown.
    """
    if not gc.get_freeze_count():
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for name in [name for name in vars(main) if name != "__builtins__"]:
        setattr(main, name, None)
    gc.collect()
    for text in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):  # the other end is closed, or there is none
            text.flush()
    os._exit(code & 0xFF)


def _run_file(words: list[str], main: types.ModuleType) -> None:
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    main.__file__ = words[0]
    with open(words[0]) as file:
        source = file.read()
    exec(compile(source, words[0], "exec", dont_inherit=True), main.__dict__)


def _warn_as_usual() -> None:
    """Set Python's default warning filters, without ``-W error``, after those of libraries."""
    sys.warnoptions.clear()
    warnings.filters.remove(("error", None, Warning, None, 0))  # type: ignore[attr-defined]
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__", append=True)
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category, append=True)


def main(alive: int, address: int, libraries_address: int) -> None:
    """Serve the listening sockets until ``alive`` is closed; send a message to it when both are ready.

    Forks that have imported torch_xla answer ``address``, those that have imported torch and jax ``libraries_address``.
    """
    before = dict(os.environ)
    owner = socket.socket(fileno=alive)
    listeners = [socket.socket(fileno=number) for number in (address, libraries_address)]
    with _noting_reads() as seen:
        for name in ("torch", "jax", "jax.numpy"):
            importlib.import_module(name)
        in_parent = _fork() > 0
        listeners.pop(1 if in_parent else 0).close()
        if in_parent:
            importlib.import_module("torch_xla")
            owner.send(b"ready")
        importlib.import_module("torch._dynamo")  # as torch does when the first op is recorded, which takes a second
    # The children's garbage collections skip imported objects, whose pages they would copy, and do not free them at
    # exit; a test of interpreter shutdown calls gc.unfreeze().
    gc.set_threshold(20_000, 10, 10)
    gc.freeze()
    server = _Server(owner, listeners.pop(), before, seen - _READ_AGAIN)
    request = server.serve()
    del server, owner
    _run(request.words)
