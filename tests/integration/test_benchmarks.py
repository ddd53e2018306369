"""The benchmark of the monitoring overhead: what it counts, and its summary. Its timings are not tested."""

from __future__ import annotations

import torch

from benchmarks import watched, watching
from benchmarks.watched import STEP, WATCHED
from benchmarks.watching import Pair


def test_counts_of_an_operation() -> None:
    counted = watched.count_by_case(torch.device("xla:0"))
    assert counted["add"] == (3, 1), "the op, a tensor created, a tensor destroyed"
    assert counted["add_"] == (1, 1)
    movements, ops = counted[STEP]
    assert movements > ops > 20


def _pair(counting: float) -> Pair:
    counted = dict.fromkeys(WATCHED, (3.0, 1.0)) | {STEP: (150.0, 50.0)}
    without = dict.fromkeys(WATCHED, 1.0) | {STEP: 100.0}
    lines = dict.fromkeys(WATCHED, 0.5) | {STEP: 80.0}
    return Pair(counted, {n: value * (1 + counting) for n, value in without.items()}, without, lines, lines)


def test_summary() -> None:
    text, counting, lines = watching.summary([_pair(0.5), _pair(0.02), _pair(0.01)])
    assert round(counting, 9) == 0.02 and lines == 80 / 50
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert rows[2] == ["add", "1.02", "3.0", "+2.0%", "+0.50", "+0.50"]
    assert rows[-2] == [f"{STEP}, each of 50 ops", "2.04", "3.0", "+2.0%", "+1.60", "+1.60"]
    assert rows[-1][3] == "+2.0% (+1.0% to +50.0%)"
