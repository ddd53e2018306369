"""Operations on lists in a row, computed by one handler in programs for the CPU (compilation/foreach_fusion.py)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import chain

import pytest
import torch
from torch import Tensor

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.base import partitioning
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.lowering import cpu_kernel_call

List = list[Tensor]
#: More than a block of the handler, less, one element, none dimension; more than a part's numbers, and what shares one.
SHAPES = ((40, 50), (3,), (1, 1), (), (300, 300), (7,), (2, 2))

#: Of two lists, and a tensor of one number.
OPERATIONS: dict[str, Callable[[List, List, Tensor], List]] = {
    "add": lambda a, b, n: torch._foreach_add(a, b),
    "add, scaled": lambda a, b, n: torch._foreach_add(a, b, alpha=0.3),
    "add a number": lambda a, b, n: torch._foreach_add(a, 0.3),
    "add one": lambda a, b, n: torch._foreach_add(a, 1),
    "add numbers": lambda a, b, n: torch._foreach_add(a, [0.3] * len(a)),
    "add a tensor": lambda a, b, n: torch._foreach_add(a, n),
    "sub": lambda a, b, n: torch._foreach_sub(a, b),
    "sub, scaled": lambda a, b, n: torch._foreach_sub(a, b, alpha=2),
    "sub a number": lambda a, b, n: torch._foreach_sub(a, 0.3),
    "mul": lambda a, b, n: torch._foreach_mul(a, b),
    "mul by a number": lambda a, b, n: torch._foreach_mul(a, -0.3),
    "mul by a tensor": lambda a, b, n: torch._foreach_mul(a, n),
    "div": lambda a, b, n: torch._foreach_div(a, b),
    "div by a number": lambda a, b, n: torch._foreach_div(a, 3),
    "div by a tensor": lambda a, b, n: torch._foreach_div(a, n),
    "addcmul": lambda a, b, n: torch._foreach_addcmul(a, b, a, 0.3),
    "addcmul by one": lambda a, b, n: torch._foreach_addcmul(a, b, b),
    "addcdiv": lambda a, b, n: torch._foreach_addcdiv(a, a, b, [0.3] * len(a)),
    "lerp, near the start": lambda a, b, n: torch._foreach_lerp(a, b, 0.1),
    "lerp, near the end": lambda a, b, n: torch._foreach_lerp(a, b, 0.9),
    "maximum": lambda a, b, n: torch._foreach_maximum(a, b),
    "minimum": lambda a, b, n: torch._foreach_minimum(a, b),
    "sqrt": lambda a, b, n: torch._foreach_sqrt(a),
    "neg": lambda a, b, n: torch._foreach_neg(a),
    "abs": lambda a, b, n: torch._foreach_abs(a),
}


def _values(count: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[List]:
    torch.manual_seed(0)
    return [[torch.randn(shape) for shape in shapes] for _ in range(count)]


def _calls() -> int:
    """Of the handler in the programs in memory."""
    texts = [found.compiled.as_text() for found in program_cache.cache.values()]
    return sum(len(re.findall(rf'custom_call_target="{cpu_kernel_call.PREFIX}lists"', text)) for text in texts)


def _same(found: list[List], expected: list[List], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for f, e in zip(chain(*found), chain(*expected), strict=True):
        torch.testing.assert_close(f.cpu(), e, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", OPERATIONS)
def test_values(name: str) -> None:
    """The CPU's: infinities, nan and zeros of either sign among them."""
    a, b = _values(2)
    a[0][0, :6] = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0])
    b[0][0, :6] = torch.tensor([-0.0, 0.0, 1.0, float("nan"), 1.0, float("nan")])
    number, operation = torch.tensor(0.7), OPERATIONS[name]
    expected = operation(a, b, number)
    a, b = [t.to("xla") for t in a], [t.to("xla") for t in b]
    program_cache.cache.clear()
    found = operation(a, b, number.to("xla"))
    torch_xla.sync()
    assert _calls() == 3  # parts
    _same([found], [expected])


def test_other_lists() -> None:
    """Of another dtype, of shapes that are broadcast, with a number for each, empty: each operation by itself."""
    for make in (
        lambda a, b: torch._foreach_mul([t.double() for t in a], 0.3),
        lambda a, b: torch._foreach_mul([t.bfloat16() for t in a], 0.3),
        lambda a, b: torch._foreach_add(a, [t.sum() for t in b]),
        lambda a, b: torch._foreach_add(a, [0.1 * i for i in range(2, len(a) + 2)]),
        lambda a, b: torch._foreach_mul([t.reshape(-1)[:0] for t in a], 0.3),
        lambda a, b: torch._foreach_exp(a),
    ):
        a, b = _values(2, SHAPES[:4])
        expected = make(a, b)
        program_cache.cache.clear()
        found = make([t.to("xla") for t in a], [t.to("xla") for t in b])
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f.cpu(), e)
        assert _calls() == 0


def _steps(seed: int, device: str, sync: bool) -> list[List]:
    """Operations at random, in place and not, on lists of either of two kinds; some results are read by others."""
    choose, number = random.Random(seed), torch.tensor(0.7, device=device)
    pools = [
        [[t.to(device) for t in values] for values in _values(3, shapes)] for shapes in (SHAPES[1:], ((5,), (6, 7)))
    ]
    twice = [*pools[1][0][:1], *pools[1][0][:1]]  # a tensor twice in a list
    for turn in range(14):
        pool = choose.choice(pools)
        a, b = choose.choice(pool), choose.choice(pool)
        what = choose.randrange(6)
        if what < 3:
            pool.append(OPERATIONS[choose.choice(sorted(OPERATIONS))](a, b, number))
        elif what == 3:
            torch._foreach_lerp_(a, b, choose.choice((0.2, 0.8)))
        elif what == 4:
            torch._foreach_addcmul_(a, a, b, 0.1)
        else:
            pool.append([torch.tanh(t) + 1 for t in a])
        if sync and turn % 5 == 4:
            torch_xla.sync()
    return [*pools[0], *pools[1], torch._foreach_add(twice, 0.5)]


@pytest.mark.parametrize(
    ("by_handler", "count"),
    [(True, 6), (False, 2), *(pytest.param(by_kernel, 12, marks=pytest.mark.sweep) for by_kernel in (True, False))],
)
def test_chains(by_handler: bool, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of random chains are the CPU's, by the handler and by the rules that it stands for."""
    if not by_handler:  # as in a program that the compiler splits over devices
        monkeypatch.setattr(partitioning, "is_auto_partitioned", lambda ctx: True)
    program_cache.cache.clear()
    for seed in range(count):
        expected = _steps(seed, "cpu", sync=False)
        # Quotients of small differences make more of a rounding.
        _same(_steps(seed, "xla", sync=seed % 2 == 0), expected, rtol=1e-3, atol=1e-4)
    assert (_calls() > 0) == by_handler
    program_cache.cache.clear()


def test_many_numbers_on_a_team() -> None:
    """What is large is computed by all threads."""
    a, b = _values(2, ((1100, 1000), (9,)))

    def function(a: List, b: List) -> list[List]:
        c = torch._foreach_sqrt(torch._foreach_abs(torch._foreach_add(a, b)))
        return [c, torch._foreach_addcdiv(a, b, torch._foreach_add(c, 1.0), -0.1)]

    _same(function([t.to("xla") for t in a], [t.to("xla") for t in b]), function(a, b))


def test_a_step_of_an_optimizer() -> None:
    """One call for all small parameters: no kernel of XLA's for any of them, and nothing is copied."""
    parameters = [torch.ones(6, 5, device="xla").requires_grad_() for _ in range(30)]
    optimizer = torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
    program_cache.cache.clear()
    for _ in range(2):
        optimizer.zero_grad()
        torch.stack([(p * p).sum() for p in parameters]).sum().backward()
        optimizer.step()
        with counts() as moved:
            torch_xla.sync()
    text = list(program_cache.cache.values())[-1].compiled.as_text()
    assert moved["CpuKernelCalls"] == text.count('custom_call_target="torch_xla_lists"') == 1
    assert "f32[6,5]{1,0} copy(" not in text and "sqrt(" not in text
