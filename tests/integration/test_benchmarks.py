"""Summaries of benchmarks: the monitoring overhead and what it counts, the orders of a plan. Timings are not tested."""

from __future__ import annotations

import pytest
import torch

from benchmarks import plan, watched, watching
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


#: (here, jax) of combinations -> pairs in the same order, pairs compared
ORDERS = {
    "same": ([(1.0, 10.0), (2.0, 20.0), (3.0, 21.0)], (3, 3)),
    "one exchanged": ([(1.0, 10.0), (2.0, 22.0), (3.0, 21.0)], (2, 3)),
    "ties are not compared": ([(100.0, 10.0), (100.9, 9.0), (200.0, 20.0)], (2, 2)),
    "a tie in jax is no order": ([(1.0, 10.0), (2.0, 10.0)], (0, 1)),
    "zeros": ([(0.0, 1.0), (0.0, 2.0)], (0, 0)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_pairs_in_the_same_order(name: str) -> None:
    values, expected = ORDERS[name]
    for found in (values, values[::-1]):
        assert plan.count_same_order(found) == expected
