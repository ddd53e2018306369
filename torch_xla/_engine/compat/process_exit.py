"""Process exit and forks: order of atexit functions, exit code, locks in forked children."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import util
from types import ModuleType
from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_SEND = PrivateApi(
    "multiprocessing.util",
    "_exit_function",
    "flushing of multiprocessing queues before the engine closes",
    "a process that ends right after queue.put() of an xla tensor hangs",
)

_RUN = PrivateApi(
    "atexit",
    "_run_exitfuncs",
    "functions registered with atexit in workers of torch_xla.distributed.run",
    "what a script does in such functions is not done",
)

_FREE = PrivateApi(
    "_thread",
    "LockType._at_fork_reinit",
    "release of locks in a forked child that another thread held at the fork",
    "a child forked from a multi-threaded process may hang",
)


def flush_queues_before_atexit() -> None:
    """Make multiprocessing flush its queues before any atexit function that was registered until now."""
    send = _SEND.resolve_or_none()
    if send is None:
        _SEND.warn_missing()
        return
    atexit.unregister(send)
    atexit.register(send)


#: What ``register_at_exit`` has registered, in this order.
_registered: list[Callable[[], object]] = []
#: Runs the atexit functions of a child before Python 3.13, unless they have run before.
_at_end: util.Finalize | None = None


def register_at_exit(function: Callable[[], object]) -> None:
    """Register a function with atexit; ``run_exit_functions_of_child`` registers it again."""
    _registered.append(function)
    atexit.register(function)


def run_exit_functions_of_child() -> None:
    """Make this child of multiprocessing wait for its threads and run atexit functions at its end, as a main process.

    A child of Python 3.13 runs them, but has lost those that were registered before it was forked. Before 3.13, it has
    them, but runs none.
    """
    global _at_end
    if sys.version_info >= (3, 13):
        for function in (_end_with_exit_code, *_registered):
            atexit.unregister(function)
            atexit.register(function)
        flush_queues_before_atexit()
    else:  # after multiprocessing has flushed its queues
        _at_end = util.Finalize(None, exit_like_main_process, exitpriority=-100)


def exit_like_main_process() -> None:
    """Do what the interpreter does when a main process ends: wait for threads, then run and drop atexit functions.

    For a child of multiprocessing whose process goes on after its script has ended. Ends the process if
    ``set_exit_code`` was called.
    """
    if _at_end is not None:
        _at_end.cancel()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    run = _RUN.resolve_or_none()
    if run is None:
        _RUN.warn_missing()
        return
    run()
    _end_with_exit_code()


def _end_with_exit_code() -> None:
    """End the process if ``set_exit_code`` was called: multiprocessing ends children without the last destructors."""
    if hasattr(sys, "_torch_xla_exit_code"):
        del sys._torch_xla_exit_code


def reset_lock(lock: Any) -> None:
    """Release a lock in a forked child, whichever thread held it, as logging and threading do with theirs."""
    free = _FREE.resolve_or_none()
    if free is not None:
        free(lock)


class _ExitCode:
    """Ends the process with an exit code in its destructor, which the interpreter runs last."""

    def __init__(self, code: int) -> None:
        self.code = code

    # Bound here: the globals of this module are cleared by then.
    def __del__(self, sys: ModuleType = sys, suppress: Any = suppress, leave: Any = os._exit) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):  # the stream is closed or None
                stream.flush()
        leave(self.code)


def set_exit_code(code: int) -> None:
    """Make this process exit with the code, from a function registered with atexit.

    Python determines the exit code before it calls those functions, and ignores what they raise. Other atexit functions
    and the teardown of modules run as usual; objects in ``sys`` are destroyed last.
    """
    sys._torch_xla_exit_code = _ExitCode(code)  # type: ignore[attr-defined]


def is_importing_main() -> bool:
    """Whether this is a process of multiprocessing that imports the main module, before it runs its function."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
