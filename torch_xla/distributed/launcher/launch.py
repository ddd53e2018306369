"""A job from its first attempt to its exit code."""

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

#: Exit codes: a job that stood still in every attempt, and the launcher's own errors, as timeout(1) and shells have it.
STOOD_STILL, CANNOT_START = 124, 126

_CHECK_SECONDS = 120
_HEALTH_SECONDS = 30.0
_PAUSE = 10.0


def launch(job: Job) -> int:
    """Runs the job, again where it was lost rather than failed, and returns the worst exit code of its last attempt.

    Raises LaunchError where workers cannot be found or used, and KeyboardInterrupt after everything has been ended.
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
    """One attempt on healthy machines. What speaks for another one is in the outcome's ``trouble``."""
    try:
        workers = _wait_until_healthy(job, workers)
        _check(job, workers)
        outcome = job_attempt.run_workers(job, workers, worker_env(job, workers))
        outcome.trouble = outcome.trouble or (_infrastructure_failure(job) if outcome.worst else None)
    except LaunchError as error:
        if first:
            raise
        time.sleep(_PAUSE)  # the job did run: a machine may just be starting again
        return job_attempt.Outcome(trouble=str(error))
    return outcome


def worker_env(job: Job, workers: Sequence[Worker]) -> list[dict[str, str]]:
    """The environment of each worker's command: the user's variables and those by which the workers find each other."""
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
    """Raises LaunchError with what each unusable worker says."""

    def complaint(worker: Worker) -> str | None:
        try:
            done = subprocess.run(
                worker.argv(remote_scripts.check_script(job)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_CHECK_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"worker {worker.ordinal} ({worker.name}) does not answer within {_CHECK_SECONDS} s"
        except FileNotFoundError as error:
            raise LaunchError(f"{error.filename} is not installed here") from None
        if done.returncode == 0:
            return None
        said = done.stderr.decode(errors="replace").strip()
        return f"worker {worker.ordinal} ({worker.name}), exit code {done.returncode}: {said}"

    with ThreadPoolExecutor(min(32, len(workers))) as pool:
        complaints = [text for text in pool.map(complaint, workers) if text]
    if complaints:
        raise LaunchError("\n".join(["these workers cannot be used:", *complaints]))


def _wait_until_healthy(job: Job, workers: list[Worker]) -> list[Worker]:
    """The workers, when all are healthy: waits for a TPU under maintenance."""
    while not all(worker.healthy for worker in workers):
        _log(f"waiting for {', '.join(worker.name for worker in workers if not worker.healthy)} to be healthy")
        time.sleep(_HEALTH_SECONDS)
        workers = resolve(job)
    return workers


def _infrastructure_failure(job: Job) -> str | None:
    """Why a failure was the machines' and not the command's; None where it was not."""
    if not job.tpus:
        return None
    sick = [worker.name for worker in resolve(job) if not worker.healthy]
    return f"{', '.join(sick)} became unhealthy" if sick else None


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """In the block SIGTERM and SIGHUP raise as Ctrl-C does, so that they clean up as well."""

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
