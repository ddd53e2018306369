"""The end of a process, and its forks: what Python's own library does in it, and when."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_SEND = PrivateApi(
    "multiprocessing.util",
    "_exit_function",
    "values that are still on their way to other processes are sent before the engine closes",
    "a process that ends right after queue.put() of an xla tensor hangs",
)

_FREE = PrivateApi(
    "_thread",
    "LockType._at_fork_reinit",
    "locks that another thread held at a fork are free in the child",
    "a child that was forked beside other threads may hang",
)


def flush_queues_before_atexit() -> None:
    """Has multiprocessing send what is in its queues before any of the functions registered with atexit until now."""
    send = _SEND.resolve_or_none()
    if send is None:
        _SEND.warn_missing()
        return
    atexit.unregister(send)
    atexit.register(send)


def reset_lock(lock: Any) -> None:
    """Makes a lock free in a forked child, whoever held it; as logging and threading do with theirs."""
    free = _FREE.resolve_or_none()
    if free is not None:
        free(lock)


class _ExitCode:
    """Ends the process with its code when it dies, which the interpreter lets it do last."""

    def __init__(self, code: int) -> None:
        self.code = code

    # What it needs is bound here: the names of this module are gone by then.
    def __del__(self, sys: ModuleType = sys, suppress: Any = suppress, leave: Any = os._exit) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):  # closed, or none
                stream.flush()
        leave(self.code)


def set_exit_code(code: int) -> None:
    """Has this process end with the code, whatever it was going to be; called by a function registered with atexit.

    Python settles the code before it calls those, and ignores what they raise. The other functions are called and the
    modules freed as always; what is in ``sys`` goes last.
    """
    sys._torch_xla_exit_code = _ExitCode(code)  # type: ignore[attr-defined]
