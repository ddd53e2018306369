"""What watching costs recording: the counters, which are always on, and the user's lines (XLA_IR_DEBUG).

    python -m benchmarks.watching [--quick] [--check]

The operations are those of record.py, except the backward pass, which records other operations than it measures;
there is a small training step with its modules instead. Nothing turns counters off, so they are measured by two
processes that take turns, round by round: one has the recorder as it is, one a build of it in which counting does
nothing (TORCH_XLA_NO_COUNTERS; the first run builds it). Two processes differ by some percent however equal they are,
so several pairs are started: the table shows medians over the pairs of the medians over the rounds, and how far the
pairs are apart. Lines are switched on and off within one process, and each round subtracts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import geometric_mean, setting, table
from benchmarks.watched import DEEP, STEP, WATCHED
from torch_xla._engine.base.settings import settings

TARGET_COUNTERS = 0.03  # of the time of recording
TARGET_LINES = 3.0  # µs per operation


Sample = dict[str, float]  # µs per call, by name of the case


@dataclass(frozen=True)
class Round:
    """What one process measured in one round: as usual, with lines captured, and captured below a deep stack."""

    plain: Sample
    lines: Sample
    deep: Sample


class Worker:
    """A process that measures, with counters or built without them. It ends with the ``with`` block that it is made in.

    started -> has said what it counts -> a round for each call of round() -> ended
    """

    def __init__(self, counters: bool) -> None:
        environment = os.environ | {"XLA_IR_DEBUG": "0", "XLA_HLO_DEBUG": "0"}
        if not counters:
            # A separate cache: nothing else must ever load that build.
            environment |= {
                "CXX": f"{os.environ.get('CXX') or 'c++'} -DTORCH_XLA_NO_COUNTERS",
                "TORCH_XLA_CACHE_DIR": str(settings.cache_dir / "without_counters"),
            }
        command = [sys.executable, "-m", "benchmarks.watched"]
        pipe, root = subprocess.PIPE, Path(__file__).parent.parent
        self._process = subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, cwd=root)
        self.counted: dict[str, tuple[float, float]] = self._answer()
        if any(movements > 0 for movements, _ in self.counted.values()) != counters:
            raise RuntimeError("the recorder of this process was built with counters where it should not, or without")

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process that measures has ended with {self._process.wait()}; its error is above")
        return json.loads(line)

    def round(self) -> Round:
        """Measures every case once."""
        assert self._process.stdin is not None
        print("round", file=self._process.stdin, flush=True)
        return Round(*self._answer())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Pair:
    """Medians over the rounds of two processes, in µs per call: with counters, without, and what lines add."""

    counted: dict[str, tuple[float, float]]
    with_counters: Sample
    without: Sample
    lines: Sample
    deep: Sample


def measure(rounds: int) -> Pair:
    """Starts two processes, which take turns."""
    with Worker(counters=True) as usual, Worker(counters=False) as bare:
        both = [(usual.round(), bare.round()) for _ in range(rounds + 1)][1:]  # the first warms caches

    def medians(value: Callable[[Round, Round, str], float]) -> Sample:
        return {name: median(value(a, b, name) for a, b in both) for name in WATCHED}

    return Pair(
        usual.counted,
        medians(lambda a, b, name: a.plain[name]),
        medians(lambda a, b, name: b.plain[name]),
        medians(lambda a, b, name: a.lines[name] - a.plain[name]),
        medians(lambda a, b, name: a.deep[name] - a.plain[name]),
    )


def summary(pairs: list[Pair]) -> tuple[str, float, float]:
    """The table; the share of recording that is counting, over all cases; the most that lines add to an operation."""
    rows, costs = [], []
    for name in WATCHED:
        movements, recorded = pairs[0].counted[name]
        ops = max(1.0, recorded) if name == STEP else 1.0
        plain, lines, deep = (
            median(sample[name] for sample in samples) / ops
            for samples in ([p.with_counters for p in pairs], [p.lines for p in pairs], [p.deep for p in pairs])
        )
        share = median(p.with_counters[name] / p.without[name] - 1 for p in pairs)
        costs += [lines, deep]
        label = f"{name}, each of {ops:.0f} ops" if name == STEP else name
        rows.append([label, f"{plain:.2f}", f"{movements / ops:.1f}", f"{share:+.1%}", f"{lines:+.2f}", f"{deep:+.2f}"])
    means = [geometric_mean([p.with_counters[n] / p.without[n] for n in WATCHED]) - 1 for p in pairs]
    spread = f"{median(means):+.1%} ({min(means):+.1%} to {max(means):+.1%})"
    rows.append(["geometric mean; that of each pair", "", "", spread, "", ""])
    head = ["host µs per operation", "recorded", "counts", "of that counting", "lines add", f"{DEEP} frames deeper"]
    return table(head, rows), median(means), max(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair of processes and few rounds")
    parser.add_argument("--check", action="store_true", help="end with 1 where a target is missed")
    options = parser.parse_args()
    pairs = [measure(5 if options.quick else 31) for _ in range(1 if options.quick else 5)]
    text, counting, lines = summary(pairs)
    print(f"{setting()}\n\n{text}")
    missed = counting > TARGET_COUNTERS or lines > TARGET_LINES
    targets = f"counting at most {TARGET_COUNTERS:.0%}, lines at most {TARGET_LINES} µs"
    print(f"\ntargets: {targets}: {'missed' if missed else 'met'}")
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
