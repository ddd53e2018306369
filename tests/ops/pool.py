"""Runs checks in worker processes, each with a time limit: a crash or a hang affects no other check."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tests.ops.outcome import Outcome, from_dict

ROOT = Path(__file__).resolve().parent.parent.parent

#: Seconds until a fresh worker has imported torch and its database.
START_SECONDS = 180
#: Checks after which a worker is replaced: XLA does not return all of its memory.
CHECKS_PER_WORKER = 600


class WorkerDied(Exception):
    """Raised when the worker exits before it answers; the message has its exit status."""


class _Worker:
    """A worker process. ``ask`` raises WorkerDied or TimeoutError, after which the worker cannot be used."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ops.worker", str(write)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
            text=True,
        )
        os.close(write)
        self._answers, self._buffer = read, b""
        self.asked = 0
        self._line(START_SECONDS)

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        self.asked += 1
        assert self._process.stdin is not None
        try:
            print(json.dumps(job), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerDied(self._exit_status()) from None
        answer: dict[str, Any] = json.loads(self._line(seconds))
        return answer

    def _line(self, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer within {seconds:.0f} s")
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                raise WorkerDied(self._exit_status())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _exit_status(self) -> str:
        code = self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exited with {code}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._answers)


def run(jobs: list[dict[str, Any]], workers: int, seconds: float) -> Iterator[Outcome]:
    """Yield the outcomes of the jobs (op, dtype, kind, samples) when done; ``seconds`` is the limit of each."""
    waiting: Queue[dict[str, Any]] = Queue()
    done: Queue[Outcome] = Queue()
    for job in jobs:
        waiting.put(job)
    for _ in range(workers):
        threading.Thread(target=_serve, args=(waiting, done, seconds), daemon=True).start()
    for _ in jobs:
        yield done.get()


def _serve(waiting: Queue[dict[str, Any]], done: Queue[Outcome], seconds: float) -> None:
    worker: _Worker | None = None
    while True:
        try:
            job = waiting.get_nowait()
        except Empty:
            break
        outcome = Outcome(job["op"], job["dtype"], job["kind"])
        try:
            worker = worker or _Worker()
            outcome = from_dict(worker.ask(job, seconds))
        except TimeoutError as error:
            outcome.fail("timeout", str(error), "")
        except WorkerDied as error:
            outcome.fail("crash", str(error), "")
        if worker and (outcome.status in ("timeout", "crash") or worker.asked >= CHECKS_PER_WORKER):
            worker.close()
            worker = None
        done.put(outcome)
    if worker:
        worker.close()
