"""What the CPU computes, refuses or allows, xla does too: random programs that cross the seams (seams.py)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests import seams


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each program is another graph: that they are compiled again is no news."""
    log = logging.getLogger("torch_xla")
    before = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(before)


@pytest.mark.parametrize("first", range(0, 300, 75))
def test_programs(first: int) -> None:
    for number in range(first, first + 75):
        check(seams.program(number))


#: 50 x 1,000, and longer ones.
@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(50))
def test_many_programs(shard: int) -> None:
    for number in range(1_000_000 + 1000 * shard, 1_000_000 + 1000 * (shard + 1)):
        check(seams.program(number, length=6 if shard % 5 else 15))


def check(program: seams.Program) -> None:
    try:
        seams.run(program)
    except seams.Difference:
        short = seams.shortened(program)
        seams.run(short)
        raise


#: Programs that once went wrong, shortened.
FOUND: dict[str, seams.Program] = {
    "a reduction adds up in the dtype of out": [("sum out", 0, 1, 1, 9)],
    "the same, of complex numbers into bools": [("sum out", 1, 11, 9, 11)],
    "more values than places": [("index_put_", 0, 0, 0, 0), ("new", 0, 0, 0, 0), ("index_put_", 0, 1, 2, 1)],
    "values that do not fit the places": [
        ("transpose", 0, 2, 7, 5), ("mask index", 2, 0, 1, 1), ("number first", 1, 2, 8, 7), ("index_put_", 0, 8, 4, 9),
    ],
    "an operand is not resized": [("mean", 8, 5, 11, 1), ("sqrt", 0, 10, 11, 8), ("eq out", 11, 9, 6, 6)],
    "a lazy conjugate of the target is read as a copy": [("H", 1, 1, 5, 6), ("add out", 5, 8, 4, 7)],
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    check(FOUND[name])
