"""A process that has imported torch, jax and torch_xla, and forks a child for each script that it is sent.

Importing takes four seconds, a fork a few milliseconds. It starts no backend and no thread, so that the child is what
an interpreter is that has just imported them: its settings, its devices and its atexit handlers are its own. See
``run_script`` in helpers.py, and ``Server`` in scripts.py, which talks to this process.
"""

from __future__ import annotations

import builtins
import gc
import importlib.machinery
import json
import os
import selectors
import socket
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A script; the folder that it starts in; what is different in its environment (None: not set)."""

    code: str
    folder: str
    environment: dict[str, str | None]


@contextmanager
def _noting_reads() -> Iterator[set[str]]:
    """The environment variables that Python code looks at, while the block runs."""
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


def _fork(request: Request, streams: list[int]) -> int:
    """0 in the child, which is ready for the script then; in the server the child's id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on: BLAS has threads, and sees to them itself
        child = os.fork()
    if child:
        return child
    for stream, number in zip(streams, (1, 2), strict=True):
        os.dup2(stream, number)
    os.chdir(request.folder)
    for name, value in request.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.modules["numpy"].random.seed()  # as at its import; Python's own generator does it by itself
    return 0


class _Server:
    def __init__(self, requests: socket.socket) -> None:
        self.requests, self.selector = requests, selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.running: dict[int, tuple[int, int]] = {}  # by a child's pidfd: its id, and where its end is told

    def serve(self) -> Request:
        """Forks for each request, and returns in the children. The server ends when its client has."""
        while True:
            for key, _ in self.selector.select():
                if key.fd in self.running:
                    self.tell_end(key.fd)
                elif (request := self.answer()) is not None:
                    return request

    def answer(self) -> Request | None:
        """Starts what the next request asks for: the request in the child, None in the server."""
        message, streams, _, _ = socket.recv_fds(self.requests, 1 << 20, 3)
        if not message:
            os._exit(0)
        request = Request(**json.loads(message))
        child = _fork(request, streams[:2])
        for stream in streams[:2]:
            os.close(stream)
        if child == 0:
            self.close()
            os.close(streams[2])
            return request
        pidfd = os.pidfd_open(child)
        self.running[pidfd] = child, streams[2]
        self.selector.register(pidfd, selectors.EVENT_READ)
        return None

    def tell_end(self, pidfd: int) -> None:
        child, told = self.running.pop(pidfd)
        self.selector.unregister(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(told, str(code).encode())
        os.close(told)
        os.close(pidfd)

    def close(self) -> None:
        """In a child: the descriptors that are none of its business."""
        self.selector.close()
        self.requests.close()
        for pidfd, (_, told) in self.running.items():
            os.close(pidfd)
            os.close(told)


def _run(code: str) -> None:
    """What ``python -c`` does with the code; the caller returns, and the interpreter ends as it always does."""
    # A new one: what importing has made, the old one's names among it, is frozen, and would not be freed at the end.
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins, __loader__=importlib.machinery.BuiltinImporter)
    try:
        exec(compile(code, "<string>", "exec", dont_inherit=True), main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def main(descriptor: int) -> None:
    """Serves the socket of that number, after a message with the variables that importing has looked at."""
    with _noting_reads() as seen:
        import torch_xla  # noqa: F401
    # What importing has made is not looked at by the children's garbage collections, which would also copy its pages.
    # The last one, at the end, takes longer than most scripts otherwise; where the end is the point: gc.unfreeze().
    gc.freeze()
    requests = socket.socket(fileno=descriptor)
    requests.send(json.dumps(sorted(seen)).encode())
    _run(_Server(requests).serve().code)
