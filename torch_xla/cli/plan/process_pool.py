"""Runs jobs in processes, a number of them at a time, forked from a server that has imported the engine once."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import connection, context
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

from torch_xla.cli.plan.job import PlanJob

#: Seconds between checks for signals while processes run.
_TICK = 1.0
#: Memory in bytes that a process is expected to need.
_MEMORY = 4 << 30


class ProcessPool:
    """Owns the processes of its jobs, and the handler of SIGTERM, for the length of its block.

    entered ──run()──► running: at most ``count`` processes; each ended one is yielded, and the next job starts
            ──exception, SIGTERM──► processes still running are terminated, waited for and, after a grace period, killed
    """

    def __init__(self, module: str, count: int) -> None:
        """Call ``run(job)`` of a module, which the server imports once, in a process for each job."""
        self._module, self._count = module, count
        self._context = multiprocessing.get_context("forkserver")
        self._running: dict[int, tuple[PlanJob, context.ForkServerProcess]] = {}
        self._previous: object = None

    def __enter__(self) -> Self:
        self._context.set_forkserver_preload([self._module])
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, _raise_exit)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _job, process in self._running.values():
            process.terminate()
        for _job, process in self._running.values():
            process.join(_TICK)
            process.kill()
            process.join()
        self._running.clear()
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]  # what signal() returned

    def run(self, jobs: Sequence[PlanJob]) -> Iterator[tuple[PlanJob, int]]:
        """Yield each job with the exit code of its process, negative for a signal, as they end."""
        waiting = list(reversed(jobs))
        while waiting or self._running:
            while waiting and len(self._running) < self._count:
                self._start(waiting.pop())
            connection.wait(list(self._running), _TICK)
            for sentinel, (job, process) in list(self._running.items()):
                if process.exitcode is not None:
                    del self._running[sentinel]
                    yield job, process.exitcode

    def _start(self, job: PlanJob) -> None:
        process = self._context.Process(target=_run_job, args=(self._module, job), daemon=False)
        process.start()
        self._running[process.sentinel] = job, process


def _run_job(module: str, job: PlanJob) -> None:
    importlib.import_module(module).run(job)


def _raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def default_process_count() -> int:
    """Return the number of processes that the processors and the available memory allow."""
    fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available = next(int(row[1]) << 10 for row in fields if row[0] == "MemAvailable:")
    return max(1, min(len(os.sched_getaffinity(0)), available // _MEMORY))
