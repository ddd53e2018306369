"""Run a job: check the workers, run attempts, restart, and return the exit code."""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from torch_xla.distributed.launcher import job_attempt, remote_scripts
from torch_xla.distributed.launcher.options import DEFAULT_PORT, Job
from torch_xla.distributed.launcher.workers import LaunchError, Worker, resolve

#: Exit codes, as of timeout(1) and shells: a job that made no progress in every attempt; the launcher's own errors.
STOOD_STILL, CANNOT_START = 124, 126

_CHECK_SECONDS = 120
_HEALTH_SECONDS = 30.0
_PAUSE = 10.0


def launch(job: Job) -> int:
    """Run the job, restart it after infrastructure failures, and return the worst exit code of the last attempt.

    Raises:
      LaunchError: workers cannot be found or used.
      KeyboardInterrupt: the user interrupted the job; all processes are terminated before.
    """
    workers = resolve(job)
    if job.dry_run:
        for worker, variables in zip(workers, worker_env(job, workers), strict=True):
            marked = variables | {remote_scripts.MARK: "dry-run"}
            command = shlex.join(worker.argv(remote_scripts.run_script(job, marked)))
            print(f"printf '%s\\n' {shlex.quote(remote_scripts.export_line(job, marked))} | {command}")
        return 0
    restarts = 0
    with _signals_as_interrupts():
        while True:
            outcome = _attempt(job, workers, first=restarts == 0)
            if outcome.trouble is None:
                return outcome.worst
            if restarts >= job.max_restarts:
                _log(f"{outcome.trouble}; giving up after {restarts} restarts")
                return outcome.worst or STOOD_STILL
            restarts += 1
            _log(f"{outcome.trouble}; restart {restarts} of at most {job.max_restarts}")


def _attempt(job: Job, workers: list[Worker], first: bool) -> job_attempt.Outcome:
    """Run one attempt on healthy hosts. The reason for another attempt is the outcome's ``trouble``."""
    try:
        workers = _wait_until_healthy(job, workers)
        _check(job, workers)
        outcome = job_attempt.run_workers(job, workers, worker_env(job, workers))
        outcome.trouble = outcome.trouble or (_infrastructure_failure(job) if outcome.worst else None)
    except LaunchError as error:
        if first:
            raise
        time.sleep(_PAUSE)  # the job was running: a host may be restarting
        return job_attempt.Outcome(trouble=str(error))
    return outcome


def worker_env(job: Job, workers: Sequence[Worker]) -> list[dict[str, str]]:
    """Return the environment of each worker's command: the user's variables and those of the rendezvous."""
    port = job.port or (_free_port() if job.local else DEFAULT_PORT)
    count = len(workers)
    common = {
        "PYTHONUNBUFFERED": "1",
        **dict(job.env),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count if job.local else 1),
        "GROUP_WORLD_SIZE": str(1 if job.local else count),
        "MASTER_ADDR": workers[0].address,
        "MASTER_PORT": str(port),
        "XLA_EMIT_STEPLOG": "1",
    }
    if job.tpus:
        common = {"PJRT_DEVICE": "TPU", **common}
    return [
        {**common, "RANK": str(i), "LOCAL_RANK": str(i if job.local else 0), "GROUP_RANK": str(0 if job.local else i)}
        for i in range(count)
    ]


def _check(job: Job, workers: Sequence[Worker]) -> None:
    """Raise LaunchError with the message of each unusable worker."""

    def complaint(worker: Worker) -> str | None:
        try:
            done = subprocess.run(
                worker.argv(remote_scripts.check_script(job)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"worker {worker.ordinal} ({worker.name}) did not answer within {_CHECK_SECONDS} s"
        except FileNotFoundError as error:
            raise LaunchError(f"{error.filename} is not installed on this machine") from None
        if done.returncode == 0:
            return None
        said = done.stderr.decode(errors="replace").strip()
        return f"worker {worker.ordinal} ({worker.name}), exit code {done.returncode}: {said}"

    with ThreadPoolExecutor(min(32, len(workers))) as pool:
        complaints = [text for text in pool.map(complaint, workers) if text]
    if complaints:
        raise LaunchError("\n".join(["cannot use these workers:", *complaints]))


def _wait_until_healthy(job: Job, workers: list[Worker]) -> list[Worker]:
    """Return the workers when all are healthy; waits for a TPU under maintenance."""
    while not all(worker.healthy for worker in workers):
        _log(f"waiting for {', '.join(worker.name for worker in workers if not worker.healthy)} to be healthy")
        time.sleep(_HEALTH_SECONDS)
        workers = resolve(job)
    return workers


def _infrastructure_failure(job: Job) -> str | None:
    """Return why a failure was caused by the hosts and not by the command, or None."""
    if not job.tpus:
        return None
    sick = [worker.name for worker in resolve(job) if not worker.healthy]
    return f"{', '.join(sick)} became unhealthy" if sick else None


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt in the block, so that they clean up as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _log(text: str) -> None:
    print(f"xla_dist: {text}", file=sys.stderr, flush=True)
