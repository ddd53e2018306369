"""Detect workers that have stopped making steps, by the step log lines that XLA_EMIT_STEPLOG=1 enables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Texts that a step barrier prints: upstream's, and that of later releases.
LINES = ("torch_xla.core.xla_model::mark_step", "torch_xla.torch_xla::sync")


def is_step(line: str) -> bool:
    """Return whether the line is exactly what a step barrier prints."""
    return line in LINES


def ends_with_step(line: str) -> bool:
    """Return whether the line ends with a step log text, after a progress bar that does not end the line."""
    return line.endswith(LINES)


class Heartbeats:
    """Step count and time of the latest step of each running worker.

    Monitoring begins with the first step of any worker: a long compilation may precede it, and a command that does not
    train makes no steps. Workers of a job wait for each other, so in a healthy job the counts differ only while a step
    is in flight. Reader threads call ``beat``, the launcher's thread calls the other methods.
    """

    def __init__(self, workers: int, uneven: float, even: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._uneven, self._even, self._clock = uneven, even, clock
        self._steps = dict.fromkeys(range(workers), 0)
        self._latest: dict[int, float] = {}
        self._lock = threading.Lock()

    def beat(self, ordinal: int) -> None:
        """Record a step of a worker."""
        with self._lock:
            if not self._latest:
                self._latest = dict.fromkeys(self._steps, self._clock())
            if ordinal in self._steps:
                self._steps[ordinal] += 1
                self._latest[ordinal] = self._clock()

    def worker_exited(self, ordinal: int) -> None:
        """Record that a worker has exited and makes no more steps."""
        with self._lock:
            self._steps.pop(ordinal, None)
            self._latest.pop(ordinal, None)

    def failure_reason(self) -> str | None:
        """Return why the job should be restarted, or None."""
        with self._lock:
            if not self._latest or not self._steps:
                return None
            fewest, most = min(self._steps.values()), max(self._steps.values())
            uneven = fewest < most
            # Workers ahead wait for those behind: if the counts differ, the fault is with one of the latter.
            behind = [ordinal for ordinal, steps in self._steps.items() if steps == fewest]
            slowest = min(behind, key=self._latest.__getitem__)
            silent = self._clock() - self._latest[slowest]
            setting, limit = ("UNEVEN", self._uneven) if uneven else ("EVEN", self._even)
            if silent <= limit:
                return None
            others = f"other workers have made up to {most} steps" if uneven else "the other workers have stopped, too"
            return (
                f"worker {slowest} has made no step for {silent:.0f} s (XLA_{setting}_HEARTBEAT_TIMEOUT={limit:g}), "
                f"after {self._steps[slowest]} steps; {others}"
            )
