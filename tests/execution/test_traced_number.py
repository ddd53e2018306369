"""Traced numbers: arithmetic keeps the expression, comparisons and conversions become conditions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from torch_xla._engine.replay.number_inputs import Converted, Unexplained, find_inputs
from torch_xla._engine.replay.traced_number import NumberTrace


def traced(value: float, use: Callable[[Any], Any]) -> tuple[NumberTrace, float]:
    """The trace and the result of a use of one source."""
    trace = NumberTrace()
    return trace, use(trace.add_source("x", value))


def plain(number: float) -> float:
    """The number, as an operation of the graph has it: without a condition."""
    return float.__mul__(number, 1.0)


EXPRESSIONS: list[Callable[[Any], Any]] = [
    lambda x: x,
    lambda x: -x * 0.5 + 3,
    lambda x: 1 - 0.9**x,
    lambda x: (1 - 0.999**x) ** 0.5,
    lambda x: 2 / x - abs(x) // 0.3,
    lambda x: x % 0.7,
    lambda x: x if x > 0 else -x,
    lambda x: max(x, 0.0) * min(x, 1e9),
]


@pytest.mark.parametrize("use", EXPRESSIONS)
def test_expressions_are_evaluated_as_python_does(use: Callable[[Any], Any]) -> None:
    """An input is computed for another value, bit by bit as the step computes it."""
    (before, old), (now, new) = traced(1.25, use), traced(2.5, use)
    inputs = find_inputs([plain(old)], [plain(new)], (before, now), {}, frozenset())
    assert inputs.compute([4.75]) == [(0, use(4.75))]


CONVERSIONS: list[Callable[[Any], Any]] = [
    lambda x: float(int(x)),
    lambda x: float(round(x)),
    lambda x: float(math.floor(x)),
    lambda x: float(math.ceil(x)),
    lambda x: float(f"{x:.0f}"),
    lambda x: float(str(x)),
    lambda x: float(np.floor(x)),
    lambda x: divmod(x, 2)[0],
    lambda x: float(hash(x) % 7),
    lambda x: 1.0 if x.is_integer() else 0.0,
]


@pytest.mark.parametrize("use", CONVERSIONS)
def test_converted_numbers_have_to_be_the_same(use: Callable[[Any], Any]) -> None:
    """A converted number that changes between the recordings, or with each step, has no replay: the line is named."""
    (before, _), (now, _), (later, _) = traced(3.5, use), traced(3.5, use), traced(3.25, use)
    assert find_inputs([1.0], [1.0], (before, now), {}, frozenset()).varying == ()
    for trace, always in ((later, frozenset()), (now, frozenset({"x"}))):
        with pytest.raises(Converted) as error:
            find_inputs([1.0], [1.0], (before, trace), {}, always)
        assert error.value.line == f"{__file__}:{use.__code__.co_firstlineno}"


BRANCHES: list[Callable[[Any], Any]] = [lambda x: 1.0 if x > 2 else 0.0, lambda x: 1.0 if x == -8 else 0.0]


@pytest.mark.parametrize("use", BRANCHES)
def test_branches_are_conditions(use: Callable[[Any], Any]) -> None:
    """A number that the step compares has to lead to the same branch."""
    (before, old), (now, new) = traced(3.25, use), traced(3.5, use)
    inputs = find_inputs([1.0], [1.0], (before, now), {}, frozenset())
    assert inputs.compute([3.5] * len(inputs.varying)) == []
    assert inputs.compute([-8.0] * len(inputs.varying)) is None
    del old, new


def test_a_number_without_an_expression_is_found() -> None:
    """math.sqrt() leaves no trace: the position of the number is reported."""
    (before, old), (now, new) = traced(4.0, math.sqrt), traced(9.0, math.sqrt)
    with pytest.raises(Unexplained) as error:
        find_inputs([0.5, old], [0.5, new], (before, now), {}, frozenset())
    assert error.value.position == 1


def test_a_saturated_expression_is_compared_with_its_constant() -> None:
    """A bias correction that is 1.0 for large steps is no constant: a smaller step is not replayed with it."""
    (before, old), (now, new) = traced(5000.0, EXPRESSIONS[2]), traced(5001.0, EXPRESSIONS[2])
    assert plain(old) == plain(new) == 1.0
    inputs = find_inputs([1.0], [1.0], (before, now), {}, frozenset())
    assert inputs.compute([5002.0]) == [(0, 1.0)]
    assert inputs.compute([3.0]) is None


def test_two_sources_of_one_number_must_agree() -> None:
    """Two groups with one learning rate: which of them a number comes from is unknown until they differ."""
    traces = []
    for value in (0.1, 0.2):
        trace = NumberTrace()
        trace.add_source("a", value)
        trace.add_source("b", value)
        traces.append(trace)
    inputs = find_inputs([0.1], [0.2], (traces[0], traces[1]), {}, frozenset())
    assert set(inputs.varying) == {"a", "b"}
    assert inputs.compute([0.3, 0.3]) == [(0, 0.3)]
    assert inputs.compute([0.3, 0.4]) is None


def test_copies_stay_traced() -> None:
    """copy() and deepcopy() of a parameter group keep the expression."""
    _, number = traced(0.5, lambda x: copy.deepcopy({"lr": copy.copy(x)})["lr"])
    assert number.expression == ("source", "x")
