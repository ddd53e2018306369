"""Supervise the processes of one spawn: start, monitor and terminate them together.

    running -> ended (all have returned) or failed (one has not: terminate the others, raise its error)

A process that raises sends the traceback through its pipe and waits to be terminated, after the others: rank 0 hosts
the coordinator, and jax aborts processes that lose it. The context owns the processes, pipes and the job's folder.
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
from torch_xla._engine.execution import background_threads
from torch_xla._engine.parallel import shutdown, watchdog
from torch_xla.distributed import _parent_death, _point_to_point, _termination

#: Seconds: for errors of other ranks to arrive after the first one; between SIGTERM and SIGKILL; and for which a failed
#: process waits to be terminated.
_SETTLE, _GRACE, _PATIENCE = 0.5, 3.0, 10.0
#: Seconds between checks of the signal handler's state.
_TICK = 1.0
#: Exit code of a process that calls spawn while it imports the main module.
NO_MAIN_GUARD = 79


class SpawnContext:
    """The processes of a spawn. ``processes`` and ``pids()`` are in order of ranks."""

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
        self._errors: dict[int, tuple[float, str]] = {}  # by rank: time and traceback
        self._asked = False
        by_kernel = _parent_death.can_notify_children(start_method)
        meeting = {"TORCH_XLA_RENDEZVOUS_FILE": str(self._folder / "store")}
        self.processes: list[Any] = []
        self._pipes: list[Connection] = []
        try:
            for index, environment in enumerate(environments):
                receiver, sender = context.Pipe(duplex=False)
                self._pipes.append(receiver)
                process = context.Process(
                    target=_run,
                    args=(
                        (index, fn, args, meeting | environment, sender),
                        (os.getpid(), by_kernel),
                        start_method == "fork",
                    ),
                    daemon=daemon,
                )
                process.start()
                self.processes.append(process)
                sender.close()
        except BaseException:
            self._terminate_all()
            raise

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None) -> bool:
        """Wait, at most ``timeout`` seconds; return whether all processes have exited successfully.

        SIGTERM is forwarded to all processes; this process exits by SIGTERM after they have exited, at most
        TORCH_XLA_GRACE_PERIOD seconds later.

        Args:
          timeout: seconds to wait; None: until all processes have exited.

        Raises:
          torch.multiprocessing.ProcessRaisedException: a process raised; has the traceback of the first failed rank.
          torch.multiprocessing.ProcessExitedException: a process exited or was killed. No process is left running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with _termination.SignalForwarder(self._ask_to_end) as forwarder:
            try:
                ended = self._wait(deadline, forwarder)
                if forwarder.ends_process:
                    self._end_by_sigterm(forwarder.deadline)
                if self._failed():
                    self._fail(forwarder.deadline)
            except BaseException:
                self._terminate_all(forwarder.deadline or time.monotonic() + settings.TORCH_XLA_GRACE_PERIOD)
                raise
            if ended:
                self._terminate_all()
            return ended

    def _wait(self, deadline: float | None, forwarder: _termination.SignalForwarder) -> bool:
        """Wait until all processes exit, one fails or SIGTERM ends this process; return False at the deadline."""
        while running := [p for p in self.processes if p.exitcode is None]:
            if self._failed() or forwarder.ends_process:
                break
            left = _TICK if deadline is None else min(_TICK, deadline - time.monotonic())
            if left <= 0:
                return False
            self._wait_for_news(running, left)
        return True

    def _find_busy(self) -> list[int]:
        """Return the ranks that still run and have not sent an error."""
        self._read_errors()
        return [i for i, process in enumerate(self.processes) if process.exitcode is None and i not in self._errors]

    def _wait_for_news(self, running: list[Any], seconds: float) -> None:
        open_pipes = [pipe for pipe in self._pipes if not pipe.closed]
        multiprocessing.connection.wait([*(p.sentinel for p in running), *open_pipes], seconds)

    def _end_by_sigterm(self, deadline: float | None) -> NoReturn:
        """Terminate the processes, which have received SIGTERM, and then this one."""
        assert deadline is not None
        while (late := self._find_busy()) and (left := deadline - time.monotonic()) > 0:
            self._wait_for_news([self.processes[index] for index in late], min(_TICK, left))
        self._terminate_all(deadline)
        errors = [f"-- Process {i} failed after SIGTERM:\n{text}" for i, (_, text) in sorted(self._errors.items())]
        _termination.end_by_sigterm(late, errors)

    def _failed(self) -> bool:
        self._read_errors()
        return bool(self._errors) or any(p.exitcode for p in self.processes)

    def _read_errors(self) -> None:
        """Receive the errors that processes have sent."""
        for index, pipe in enumerate(self._pipes):
            if not pipe.closed and pipe.poll():
                with contextlib.suppress(EOFError):  # exited without an error
                    self._errors[index] = pipe.recv()
                pipe.close()

    def _exit_codes(self) -> dict[int, int]:
        """Return the exit codes of processes that exited without sending an error."""
        return {i: p.exitcode for i, p in enumerate(self.processes) if p.exitcode and i not in self._errors}

    def _fail(self, deadline: float | None) -> NoReturn:
        at_once = self._exit_codes()
        time.sleep(_SETTLE)
        self._read_errors()
        exited = self._exit_codes()
        self._terminate_all(deadline)
        # The first killed or exited process is the cause: the other errors follow from it, and jax aborts some of them.
        causes = [i for i, code in exited.items() if i in at_once or code == -signal.SIGKILL]
        if causes or not self._errors:
            first = (causes or list(exited))[0]
            raise _exit_error(first, self.processes[first].pid, exited[first])
        first = min(self._errors, key=lambda i: self._errors[i][0])
        message = f"\n\n-- Process {first} terminated with the following error:\n{self._errors[first][1]}"
        raise mp.ProcessRaisedException(message, first, self.processes[first].pid)

    def _ask_to_end(self) -> None:
        """Send SIGTERM, once: a second one could interrupt a signal handler."""
        if not self._asked:
            self._asked = True
            for process in reversed(self.processes):
                process.terminate()

    def _terminate_all(self, deadline: float | None = None) -> None:
        """Terminate all processes and delete the job's files; rank 0, on which the others depend, ends last.

        Processes may run until the deadline (of time.monotonic(), or some seconds); a second interrupt kills them.
        """
        deadline = max(deadline or 0.0, time.monotonic() + _GRACE)
        try:
            self._ask_to_end()
            for index, process in reversed(list(enumerate(self.processes))):
                if index not in self._errors:  # a process that sent an error waits to be terminated
                    process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()
        finally:
            for process in self.processes:
                process.kill()
                process.join()
            for pipe in self._pipes:
                pipe.close()
            shutil.rmtree(self._folder, ignore_errors=True)


def _exit_error(index: int, pid: int, code: int) -> mp.ProcessExitedException:
    if code < 0:
        name = signal.Signals(-code).name
        return mp.ProcessExitedException(
            f"process {index} terminated with signal {name}", index, pid, code, signal_name=name
        )
    if code == NO_MAIN_GUARD:
        return mp.ProcessExitedException(
            f"process {index} terminated with exit code {code}: each new process imports the main module, which calls "
            "spawn or torch_xla.launch again. Put the call under a main guard:\n"
            "    if __name__ == '__main__':\n"
            "        torch_xla.launch(main)\n"
            "  See: torch-xla explain spawn",
            index,
            pid,
            code,
        )
    return mp.ProcessExitedException(f"process {index} terminated with exit code {code}", index, pid, code)


_Work = tuple[int, Callable[..., Any], tuple[Any, ...], dict[str, str], Connection]


def _run(work: _Work, parent: tuple[int, bool], forked: bool) -> None:
    """Main function of a worker process."""
    _parent_death.end_with_parent(*parent)
    index, fn, args, environment, errors = work
    if forked:
        # OpenMP threads of the parent, which large CPU operations start, do not exist in a fork; its first such
        # operation would wait for them forever. DataLoader's workers do the same.
        torch.set_num_threads(1)
    os.environ.update(environment)
    settings.reload()
    watchdog.report = lambda message: _send_error(errors, message)
    try:
        fn(index, *args)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if code:
            sys.stderr.write(background_threads.finish())
            _exit_process(code)
    except BaseException as error:
        _send_error(errors, "".join(traceback.format_exception(error)))
    # multiprocessing runs no atexit functions in a child.
    if report := _point_to_point.send_at_end() + background_threads.finish():
        _send_error(errors, report)
    shutdown.leave_job()


def _send_error(errors: Connection, text: str) -> NoReturn:
    """Send the parent an error and wait to be terminated."""
    errors.send((time.time(), text))
    time.sleep(_PATIENCE)
    _exit_process(1)


def _exit_process(code: int) -> NoReturn:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
