"""The processes of one spawn: started together, watched, and ended together.

    running -> ended (all have returned) or failed (one has not: the others are ended, its error is raised)

Each process leaves the traceback of an error in a file of the job's folder, which the context owns until all have
ended. A process that fails leaves at once: it must not wait for the others, who may be waiting for it in a collective.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from torch_xla._engine import coordination
from torch_xla._engine.settings import settings

#: Seconds: for other ranks' errors to arrive after the first, and from asking a process to end to ending it.
_SETTLE, _GRACE = 0.5, 3.0
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
        meeting = {"TORCH_XLA_RENDEZVOUS": str(self._folder / "store")}
        self.processes: list[Any] = []
        try:
            for index, environment in enumerate(environments):
                process = context.Process(
                    target=_run,
                    args=(index, fn, args, environment | meeting, str(self._error_file(index)), os.getpid()),
                    daemon=daemon,
                )
                process.start()
                self.processes.append(process)
        except BaseException:
            self._end()
            raise

    def _error_file(self, index: int) -> Path:
        return self._folder / f"error_{index}"

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
                if any(p.exitcode for p in self.processes):
                    break
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                multiprocessing.connection.wait([p.sentinel for p in running], left)
        except BaseException:
            self._end()
            raise
        if any(p.exitcode for p in self.processes):
            self._fail()
        self._end()
        return True

    def _fail(self) -> None:
        time.sleep(_SETTLE)
        failed = {i: p.exitcode for i, p in enumerate(self.processes) if p.exitcode}
        raised = {i: self._error(i) for i in failed if self._error_file(i).exists()}
        self._end()
        exited = [i for i in failed if i not in raised]
        # Who was killed, or exited without a word, is the cause; errors of the others follow from it.
        if exited:
            raise _exited(exited[0], self.processes[exited[0]].pid, failed[exited[0]])
        first = min(raised, key=lambda i: raised[i][0])
        message = f"\n\n-- Process {first} terminated with the following error:\n{raised[first][1]}"
        raise mp.ProcessRaisedException(message, first, self.processes[first].pid)

    def _error(self, index: int) -> tuple[float, str]:
        moment, text = pickle.loads(self._error_file(index).read_bytes())
        return float(moment), str(text)

    def _end(self) -> None:
        """Leaves no process running and no file behind."""
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + _GRACE
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        shutil.rmtree(self._folder, ignore_errors=True)


def _exited(index: int, pid: int, code: int) -> mp.ProcessExitedException:
    if code < 0:
        name = signal.Signals(-code).name
        return mp.ProcessExitedException(
            f"process {index} terminated with signal {name}", index, pid, code, signal_name=name
        )
    return mp.ProcessExitedException(f"process {index} terminated with exit code {code}", index, pid, code)


def _run(
    index: int, fn: Callable[..., Any], args: tuple[Any, ...], environment: dict[str, str], error_file: str, parent: int
) -> None:
    """The life of one process."""
    _die_with(parent)
    os.environ.update(environment)
    settings.reload()
    try:
        fn(index, *args)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if code:
            _leave(code)
    except BaseException as error:
        _note(error, error_file)
        _leave(1)
    coordination.part()


def _note(error: BaseException, path: str) -> None:
    # Renamed when complete: the parent reads it as soon as it is there.
    text = "".join(traceback.format_exception(error))
    Path(path + ".new").write_bytes(pickle.dumps((time.time(), text)))
    os.rename(path + ".new", path)


def _leave(code: int) -> None:
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
