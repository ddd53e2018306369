"""The processes of one spawn: started together, watched, and ended together.

    running -> ended (all have returned) or failed (one has not: the others are ended, its error is raised)

A process that raises sends the traceback through its pipe and waits to be ended, after the others: rank 0 hosts the
coordinator, and jax aborts processes that lose it. The context owns processes, pipes and the job's folder.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.multiprocessing as mp

from torch_xla._engine.base.settings import settings
from torch_xla._engine.parallel import shutdown, watchdog

#: Seconds: for other ranks' errors to arrive after the first, from asking a process to end to ending it, and for which
#: a failed process waits to be ended.
_SETTLE, _GRACE, _PATIENCE = 0.5, 3.0, 10.0
_PR_SET_PDEATHSIG = 1


class SpawnContext:
    """The processes of a spawn. ``processes`` and ``pids()`` are in the order of ranks."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        environments: list[dict[str, str]],
        daemon: bool,
        start_method: str,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="torch_xla_spawn_"))
        context: Any = mp.get_context(start_method)
        self._errors: dict[int, tuple[float, str]] = {}  # by rank: when, and the traceback
        meeting = {"TORCH_XLA_RENDEZVOUS": str(self._folder / "store")}
        self.processes: list[Any] = []
        self._pipes: list[Connection] = []
        try:
            for index, environment in enumerate(environments):
                receiver, sender = context.Pipe(duplex=False)
                self._pipes.append(receiver)
                process = context.Process(
                    target=_run,
                    args=(index, fn, args, meeting | environment, sender, os.getpid(), start_method == "fork"),
                    daemon=daemon,
                )
                process.start()
                self.processes.append(process)
                sender.close()
        except BaseException:
            self._end()
            raise

    def pids(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Waits, at most ``timeout`` seconds; whether all processes have ended well.

        Raises torch.multiprocessing.ProcessRaisedException with the traceback of the rank that failed first, or
        ProcessExitedException where one exited or was killed; no process is left then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while running := [p for p in self.processes if p.exitcode is None]:
                if self._failed():
                    break
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                open_pipes = [pipe for pipe in self._pipes if not pipe.closed]
                multiprocessing.connection.wait([*(p.sentinel for p in running), *open_pipes], left)
        except BaseException:
            self._end()
            raise
        if self._failed():
            self._fail()
        self._end()
        return True

    def _failed(self) -> bool:
        self._listen()
        return bool(self._errors) or any(p.exitcode for p in self.processes)

    def _listen(self) -> None:
        """Takes the errors that processes have sent."""
        for index, pipe in enumerate(self._pipes):
            if not pipe.closed and pipe.poll():
                with contextlib.suppress(EOFError):  # ended without an error
                    self._errors[index] = pipe.recv()
                pipe.close()

    def _exit_codes(self) -> dict[int, int]:
        """Of processes that have exited without a word."""
        return {i: p.exitcode for i, p in enumerate(self.processes) if p.exitcode and i not in self._errors}

    def _fail(self) -> None:
        at_once = self._exit_codes()
        time.sleep(_SETTLE)
        self._listen()
        exited = self._exit_codes()
        self._end()
        # Who was killed or exited first is the cause: the others' errors follow from it, and jax aborts some of them.
        causes = [i for i, code in exited.items() if i in at_once or code == -signal.SIGKILL]
        if causes or not self._errors:
            first = (causes or list(exited))[0]
            raise _exited(first, self.processes[first].pid, exited[first])
        first = min(self._errors, key=lambda i: self._errors[i][0])
        message = f"\n\n-- Process {first} terminated with the following error:\n{self._errors[first][1]}"
        raise mp.ProcessRaisedException(message, first, self.processes[first].pid)

    def _end(self) -> None:
        """Leaves no process running and no file behind; rank 0, whom the others need, ends last."""
        deadline = time.monotonic() + _GRACE
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _exited(index: int, pid: int, code: int) -> mp.ProcessExitedException:
    if code < 0:
        name = signal.Signals(-code).name
        return mp.ProcessExitedException(
            f"process {index} terminated with signal {name}", index, pid, code, signal_name=name
        )
    return mp.ProcessExitedException(f"process {index} terminated with exit code {code}", index, pid, code)


def _run(
    index: int,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    environment: dict[str, str],
    errors: Connection,
    parent: int,
    forked: bool,
) -> None:
    """The life of one process."""
    _die_with(parent)
    if forked:
        # The threads of the parent's OpenMP, which large operations on the CPU start, are not in a fork, whose first
        # such operation would wait for them for ever. DataLoader's workers do the same.
        torch.set_num_threads(1)
    os.environ.update(environment)
    settings.reload()
    watchdog.report = lambda message: _tell(errors, message)
    try:
        fn(index, *args)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if code:
            _leave(code)
    except BaseException as error:
        _tell(errors, "".join(traceback.format_exception(error)))
    shutdown.part()


def _tell(errors: Connection, text: str) -> NoReturn:
    """Sends the parent an error and waits to be ended."""
    errors.send((time.time(), text))
    time.sleep(_PATIENCE)
    _leave(1)


def _leave(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _die_with(parent: int) -> None:
    """Ends this process when its parent dies, however that dies (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
