"""Notices workers that have stopped making steps, by the lines that XLA_EMIT_STEPLOG=1 makes them print."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: What a step barrier prints: the name of these documents, and that of later releases.
LINES = ("torch_xla.core.xla_model::mark_step", "torch_xla.torch_xla::sync")


def is_step(line: str) -> bool:
    """Whether the line is what a step barrier prints, and nothing else."""
    return line in LINES


def ends_with_step(line: str) -> bool:
    """Whether a barrier may have printed the end of the line: behind a progress bar, which ends no line."""
    return line.endswith(LINES)


class Heartbeats:
    """Steps and the time of the latest step of each running worker.

    Watching begins with the first step of any worker: before it there may be a long compilation, and a command that
    trains nothing makes no step at all. Workers of a job wait for each other, so the counts of a healthy one differ
    only while a step is under way. Reader threads call ``beat``, the launcher's thread the rest.
    """

    def __init__(self, workers: int, uneven: float, even: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._uneven, self._even, self._clock = uneven, even, clock
        self._steps = dict.fromkeys(range(workers), 0)
        self._latest: dict[int, float] = {}
        self._lock = threading.Lock()

    def beat(self, ordinal: int) -> None:
        """The worker has made a step."""
        with self._lock:
            if not self._latest:
                self._latest = dict.fromkeys(self._steps, self._clock())
            if ordinal in self._steps:
                self._steps[ordinal] += 1
                self._latest[ordinal] = self._clock()

    def worker_exited(self, ordinal: int) -> None:
        """The worker has ended: it makes no more steps."""
        with self._lock:
            self._steps.pop(ordinal, None)
            self._latest.pop(ordinal, None)

    def failure_reason(self) -> str | None:
        """Why the job should be started again, None if it need not be."""
        with self._lock:
            if not self._latest or not self._steps:
                return None
            fewest, most = min(self._steps.values()), max(self._steps.values())
            uneven = fewest < most
            # Those ahead wait for those behind: where the counts differ, the fault is with one of the latter.
            behind = [ordinal for ordinal, steps in self._steps.items() if steps == fewest]
            slowest = min(behind, key=self._latest.__getitem__)
            silent = self._clock() - self._latest[slowest]
            if silent <= (self._uneven if uneven else self._even):
                return None
            others = f"others have made up to {most}" if uneven else "and so have the others"
            return f"worker {slowest} has made no step for {silent:.0f} s, after {self._steps[slowest]} steps; {others}"
