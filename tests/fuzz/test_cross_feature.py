"""xla computes, rejects and allows what the CPU does: random programs that combine features (cross_feature/)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from tests.fuzz import cross_feature
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import compile_policy

if torch.__version__ < (2, 13):  # an error in a checkpointed function leaves its hooks, on the CPU as well
    pytestmark = pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <generator object _checkpoint_without:pytest.PytestUnraisableExceptionWarning"
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each program is another graph: that they are compiled again is no news."""
    log = logging.getLogger("torch_xla")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


@pytest.fixture(autouse=True)
def _unchecked_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU raises for an index out of range at the step, xla at a later sync: test_value_checks.py compares them."""
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_CHECK_INDICES", "0")
    yield
    torch_xla.sync()  # what the last program left recorded: with checks, it would fail the next test


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each graph is computed without being compiled, in a tenth of the time: what is recorded is the same."""
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", "eager")
    yield
    compile_policy.reset()


@pytest.mark.parametrize("first", range(100, 700, 150))
def test_programs(first: int, interpreted: None) -> None:
    for number in range(first, first + 150):
        compile_policy.reset()
        check(cross_feature.program(number))


@pytest.mark.parametrize("first", range(0, 100, 50))
def test_compiled_programs(first: int) -> None:
    for number in range(first, first + 50):
        check(cross_feature.program(number))


#: 50 x 1,000, and longer ones; every tenth shard compiled.
@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(50))
def test_many_programs(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if shard % 10:
        monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", "eager")
    for number in range(1_000_000 + 1000 * shard, 1_000_000 + 1000 * (shard + 1)):
        compile_policy.reset()
        check(cross_feature.program(number, length=6 if shard % 5 else 15))


def check(program: cross_feature.Program) -> None:
    try:
        cross_feature.run(program)
    except cross_feature.Difference:
        short = cross_feature.shortened(program)
        cross_feature.run(short)
        raise


#: Programs that once went wrong, shortened.
FOUND: dict[str, cross_feature.Program] = {
    "a reduction adds up in the dtype of out": [("sum out", 0, 1, 1, 9)],
    "the same, of complex numbers into bools": [("sum out", 1, 11, 9, 11)],
    "more values than places": [("index_put_", 0, 0, 0, 0), ("new", 0, 0, 0, 0), ("index_put_", 0, 1, 2, 1)],
    "values that do not fit the places": [
        ("transpose", 0, 2, 7, 5), ("mask index", 2, 0, 1, 1), ("number first", 1, 2, 8, 7), ("index_put_", 0, 8, 4, 9),
    ],
    "an index for a tensor without dims": [("sum", 5, 3, 1, 3), ("index_put_", 5, 11, 5, 6)],
    "an operand is not resized": [("mean", 8, 5, 11, 1), ("sqrt", 0, 10, 11, 8), ("eq out", 11, 9, 6, 6)],
    "a lazy conjugate of the target is read as a copy": [("H", 1, 1, 5, 6), ("add out", 5, 8, 4, 7)],
    "a place that is out of range": [("select scatter", 12, 17, 14, 41)],
    "values of another shape than the place": [("select scatter", 3, 16, 7, 43)],
    "an overlap of two dtypes": [("mT", 1, 7, 12, 32), ("view unsigned", 3, 15, 10, 5), ("add out", 9, 17, 17, 21)],
    "detached from inference mode": [("exp", 9, 3, 4, 36), ("write detached", 13, 19, 13, 13)],
    "parts of a conjugate overlap": [("fill_ imag of conj", 4, 9, 15, 3), ("add out of itself", 0, 4, 17, 7)],
    "roundings shown as bits are not defined": [
        ("gradient", 1, 19, 11, 18), ("view dtype", 2, 12, 5, 18), ("item index", 12, 3, 5, 45),
        ("logical_not_", 9, 17, 3, 46),
    ],
    "strides of results are unspecified": [("nonzero", 11, 7, 8, 40), ("resize_", 0, 2, 15, 47)],
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    check(FOUND[name])
