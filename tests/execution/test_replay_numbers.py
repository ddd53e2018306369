"""Numbers that a replayed step computes on the host: math functions, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from math import floor, log2

import numpy as np
import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met

ROOTS = {"sqrt": math.sqrt}
held = math.log1p


#: name -> (a number of a number, whether the step is replayed when the number changes in each call).
NUMBERS: dict[str, tuple[Callable[[float], float], bool]] = {
    "arithmetic": (lambda n: (2 * n + 1) ** 0.5 - 1 / n, True),
    "math.sqrt": (lambda n: math.sqrt(n), True),
    "math.cos": (lambda n: 0.5 * (1 + math.cos(math.pi * n / 100)), True),
    "math.pow": (lambda n: 1 - math.pow(0.9, n), True),
    "a function that was imported": (lambda n: log2(n), True),
    "a function in a dictionary": (lambda n: ROOTS["sqrt"](n), True),
    "a function by another name": (lambda n: held(n), True),
    "a branch": (lambda n: n * 2 if n > 9 else n, True),
    "a branch on a math function": (lambda n: n * 2 if math.log2(n) > 3 else n, True),
    "max": (lambda n: max(n, 8.25), True),
    "a comparison with a numpy number": (lambda n: 2.0 if n > np.float64(9) else 1.0, False),
    "a comparison with a fraction": (lambda n: 2.0 if n > Fraction(9) else 1.0, False),
    "math.floor": (lambda n: math.floor(n / 8), False),
    "a floor that was imported": (lambda n: floor(n / 8), False),
    "floor of a logarithm": (lambda n: math.floor(log2(n)), False),
    "math.ceil": (lambda n: math.ceil(n / 8), False),
    "math.trunc": (lambda n: math.trunc(n / 8), False),
    "math.isclose": (lambda n: 2.0 if math.isclose(n, 10.5) else 1.0, False),
    "math.fsum": (lambda n: math.fsum([n, 0.5]) // 8, False),
    "int": (lambda n: int(n / 8), False),
    "round": (lambda n: round(n / 8), False),
    "divmod": (lambda n: divmod(n, 8)[0], False),
    "divmod of a constant": (lambda n: divmod(100, n)[0] // 8, False),
    "floor division": (lambda n: n // 8, True),
    "a number that is used twice": (lambda n: n + 16 * (n // 8), True),
    "as_integer_ratio": (lambda n: n.as_integer_ratio()[0] // 16, False),
    "hex": (lambda n: len(n.hex()), False),
    "text": (lambda n: len("%.0f" % n), False),  # noqa: UP031
    "numpy.asarray": (lambda n: float(np.asarray([n]).sum() // 8), False),
    "numpy.floor": (lambda n: float(np.floor(n / 8)), False),
    "is_integer": (lambda n: 1.0 if n.is_integer() else 2.0, False),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.filterwarnings("ignore:torch_xla. torch_xla.compile")
def test_numbers_are_those_of_the_call(name: str) -> None:
    """A number that is equal in the two recordings, and differs later, is the later one then."""
    compute, is_replayed = NUMBERS[name]
    met.clear_counters()
    step = torch_xla.compile(lambda x, n: x * compute(n), replay=True)
    one = torch.ones(2, device="xla")
    for i in range(3, 15):
        n = i + 0.5
        expected = torch.ones(2) * compute(n)
        assert torch.equal(step(one, n).cpu(), expected), (name, n)
    assert bool(met.counter_value("ReplayedSteps")) is is_replayed
    assert [math.sqrt(4.0), log2(8.0), held(0.0), type(math.sqrt).__name__] == [2, 3, 0, "builtin_function_or_method"]


def test_numbers_of_a_step_count() -> None:
    """A number of the graph that is 0 in both recordings, as 0 is not an input."""
    count, x = torch.tensor(0.0), torch.ones(1, device="xla")

    @torch_xla.compile(replay=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * (count.item() // 5) + x * count.item()

    met.clear_counters()
    assert [step(x).item() for _ in range(12)] == [i // 5 + i for i in range(1, 13)]
    assert met.counter_value("ReplayedSteps") >= 4


@pytest.mark.parametrize("raises", [False, True])
def test_functions_are_restored(raises: bool) -> None:
    """Also if the step raises."""
    originals = [math.sqrt, log2, ROOTS["sqrt"], np.asarray]

    def compute(x: torch.Tensor, n: float) -> torch.Tensor:
        assert [type(function).__name__ for function in (math.sqrt, log2, ROOTS["sqrt"])] == ["function"] * 3
        if raises:
            raise ValueError("stop")
        return x * ROOTS["sqrt"](n) * log2(4.0)

    step = torch_xla.compile(compute, replay=True)
    try:
        assert step(torch.ones(1, device="xla"), 4.0).item() == 4.0
    except ValueError:
        assert raises
    assert [math.sqrt, log2, ROOTS["sqrt"], np.asarray] == originals
