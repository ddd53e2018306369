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

import torch
from torch import nn

from benchmarks.record import CASES, LAYERS, SIZE, Case, State, measure_round, repeat
from benchmarks.report import geometric_mean, no_garbage_collection, setting, table
from torch_xla._engine.settings import settings

TARGET_COUNTERS = 0.03  # of the time of recording
TARGET_LINES = 3.0  # µs per operation
DEEP = 30  # Python frames below the benchmark's own, as deep as a large model

Sample = dict[str, float]  # µs per call, by name of the case


@dataclass(frozen=True)
class Round:
    """What one process measured in one round: as usual, with lines captured, and captured below a deep stack."""

    plain: Sample
    lines: Sample
    deep: Sample


def training_step(state: State) -> None:
    """Records forward and backward pass of a small network."""
    loss = _network(state)(state.x).sum()
    torch.autograd.grad(loss, [*_network(state).parameters()])


def _network(state: State) -> nn.Module:
    if state.x.device not in _networks:
        layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(SIZE, SIZE), nn.ReLU()))
        _networks[state.x.device] = nn.Sequential(*layers).to(state.x.device)
    return _networks[state.x.device]


_networks: dict[torch.device, nn.Module] = {}
STEP = f"training step of {LAYERS} × (linear, relu)"
WATCHED: dict[str, tuple[Case, int]] = {name: case for name, case in CASES.items() if "backward" not in name}
WATCHED[STEP] = (repeat(training_step), 4)  # a round should fit into a time slice of a busy machine


# --- in a process that measures ---------------------------------------------------------------------------------------


def work() -> None:
    """First says what a call of each case counts; then measures a round for each line on stdin. Answers are JSON."""
    import torch_xla  # noqa: F401
    from torch_xla._engine import origins

    device = torch.device("xla:0")
    print(json.dumps(_counted(device)), flush=True)
    for _ in sys.stdin:
        answer = []
        with no_garbage_collection():
            for captured, frames in ((False, 0), (True, 0), (True, DEEP)):
                origins.capture(captured)
                answer.append({name: _below(frames, case, device) for name, case in WATCHED.items()})
        origins.capture(False)
        print(json.dumps(answer), flush=True)


def _below(frames: int, case: tuple[Case, int], device: torch.device) -> float:
    """measure_round, called with so many more Python frames on the stack."""
    return _below(frames - 1, case, device) if frames else measure_round(*case, device)


def _counted(device: torch.device) -> dict[str, tuple[float, float]]:
    """By case: counter movements and recorded operations of a call; zeros where the build does not count."""
    from torch_xla._engine import metrics

    found = {}
    for name, (case, _) in WATCHED.items():
        moved = []
        for calls in (1, 10, 110):  # the last two differ by 100 calls; what a round itself does is in both
            before = metrics.counters()
            measure_round(case, calls, device)
            moved.append({n: value - before.get(n, 0) for n, value in metrics.counters().items()})
        grown = {n: (moved[2][n] - moved[1].get(n, 0)) / 100 for n in moved[2]}
        found[name] = sum(grown.values()), sum(value for n, value in grown.items() if n.startswith("xla::"))
    return found


# --- in the process that was started ----------------------------------------------------------------------------------


class Worker:
    """A process that measures, with counters or built without them. It ends with the ``with`` block that it is made in.

    started -> has said what it counts -> a round for each call of round() -> ended
    """

    def __init__(self, counters: bool) -> None:
        environment = os.environ | {"XLA_IR_DEBUG": "0", "XLA_HLO_DEBUG": "0"}
        if not counters:
            # A cache of its own: nothing else must ever load that build.
            environment |= {
                "CXX": f"{os.environ.get('CXX') or 'c++'} -DTORCH_XLA_NO_COUNTERS",
                "TORCH_XLA_CACHE_DIR": str(settings.cache_dir / "without_counters"),
            }
        command = [sys.executable, "-m", "benchmarks.watching", "--worker"]
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
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return 0
    pairs = [measure(5 if options.quick else 31) for _ in range(1 if options.quick else 5)]
    text, counting, lines = summary(pairs)
    print(f"{setting()}\n\n{text}")
    missed = counting > TARGET_COUNTERS or lines > TARGET_LINES
    targets = f"counting at most {TARGET_COUNTERS:.0%}, lines at most {TARGET_LINES} µs"
    print(f"\ntargets: {targets}: {'missed' if missed else 'met'}")
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
