"""Run one attempt of a job: start all workers, monitor them until they exit or fail, and terminate the others."""

from __future__ import annotations

import queue
import secrets
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_xla._engine.base.settings import settings
from torch_xla.distributed.launcher import remote_scripts
from torch_xla.distributed.launcher.heartbeats import Heartbeats
from torch_xla.distributed.launcher.options import Job
from torch_xla.distributed.launcher.worker_process import WorkerProcess
from torch_xla.distributed.launcher.workers import CONNECTION_LOST, Worker

_TICK = 0.5  # seconds between checks of the heartbeats
_GRACE = 1.0  # seconds other workers have, after the first failure, to fail and report their errors
_POLITE = 20.0  # seconds a worker has to terminate its command (the remote script kills it after ten) and to report
_FINAL = 5.0


@dataclass
class Outcome:
    """Result of an attempt: exit codes of workers that exited by themselves, and the reason for another attempt."""

    codes: dict[int, int] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def worst(self) -> int:
        return max(self.codes.values(), default=0)


def run_workers(job: Job, workers: Sequence[Worker], variables: Sequence[dict[str, str]]) -> Outcome:
    """Start the workers and return when all have exited; no process is left running in any case."""
    mark = secrets.token_hex(8)
    beats = Heartbeats(len(workers), settings.XLA_UNEVEN_HEARTBEAT_TIMEOUT, settings.XLA_EVEN_HEARTBEAT_TIMEOUT)
    ended: queue.Queue[int] = queue.Queue()
    running: dict[int, WorkerProcess] = {}
    try:
        for worker in workers:
            marked = variables[worker.ordinal] | {remote_scripts.MARK: mark}
            script, exports = remote_scripts.run_script(job, marked), remote_scripts.export_line(job, marked)
            running[worker.ordinal] = WorkerProcess(worker, script, exports, beats.beat, ended.put)
        return _wait_for_workers(running, ended, beats)
    finally:
        _terminate_workers(list(running.values()), mark)


def _wait_for_workers(running: dict[int, WorkerProcess], ended: queue.Queue[int], beats: Heartbeats) -> Outcome:
    """Return when all workers have exited, when one makes no progress, or soon after one has failed."""
    outcome = Outcome()
    deadline: float | None = None
    while len(outcome.codes) < len(running) and (deadline is None or time.monotonic() < deadline):
        try:
            ordinal = ended.get(timeout=_TICK)
        except queue.Empty:
            outcome.trouble = outcome.trouble or beats.failure_reason()
            if outcome.trouble:
                return outcome
            continue
        beats.worker_exited(ordinal)
        process = running[ordinal]
        code = outcome.codes[ordinal] = process.code or 0
        if code == CONNECTION_LOST and not process.worker.is_local:
            outcome.trouble = f"lost the connection to worker {ordinal} ({process.worker.name})"
        if code != 0 and deadline is None:
            deadline = time.monotonic() + _GRACE
    return outcome


def _terminate_workers(processes: list[WorkerProcess], mark: str) -> None:
    """Terminate all running workers: request it, then connect to the host again, then cut the connection."""
    for process in processes:
        process.request_end()
    deadline = time.monotonic() + _POLITE
    stubborn = [p for p in processes if not p.ended_within(max(0.0, deadline - time.monotonic()))]
    sweepers = [_start(p.worker.argv(remote_scripts.kill_script(mark))) for p in stubborn]
    deadline = time.monotonic() + _POLITE
    for process, sweeper in zip(stubborn, sweepers, strict=True):
        try:
            sweeper.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            sweeper.kill()
        if not process.ended_within(_FINAL):
            process.kill()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
