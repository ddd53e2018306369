"""Random operators draw from the documented distributions, and equal seeds give equal numbers.

Continuous distributions are compared with scipy's by the Kolmogorov-Smirnov test, discrete ones by the chi-square test.
The seed is fixed, so the tests are deterministic; 1e-4 is the probability that a correct operator fails for a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.support.helpers import counts
from torch_xla._engine.lowering import RULES

N = 20_000
LEVEL = 1e-4


def _empty(dtype: torch.dtype = torch.float32, n: int = N) -> Tensor:
    return torch.zeros(n, dtype=dtype, device="xla")


def _full(value: float, n: int = N) -> Tensor:
    return torch.full((n,), value, device="xla")


def _choices(*weights: float, replacement: bool = True) -> Tensor:
    rows = torch.tensor(weights, dtype=torch.float32, device="xla").expand(N, len(weights))
    return rows.multinomial(1, replacement=replacement)[:, 0]


def _draw_without_replacement() -> Tensor:
    """Return which of six orders three weighted draws without replacement came in."""
    rows = torch.tensor([1.0, 2.0, 3.0], device="xla").expand(N, 3).multinomial(3)
    return rows[:, 0] * 2 + (rows[:, 1] > rows[:, 2])


def _orders(*weights: float) -> list[float]:
    """Return the probabilities of _draw_without_replacement's results."""
    total, out = sum(weights), []
    for first in range(3):
        second, third = (i for i in range(3) if i != first)
        p = weights[first] / total
        rest = weights[second] + weights[third]
        out += [p * weights[second] / rest, p * weights[third] / rest]
    return out


Draw = Callable[[], Tensor]
#: Name of the rule, how to draw, the distribution.
CONTINUOUS: list[tuple[str, Draw, Any]] = [
    ("rand", lambda: torch.rand(N, device="xla"), stats.uniform()),
    ("rand", lambda: torch.rand(N, device="xla", dtype=torch.float64), stats.uniform()),
    ("rand_like", lambda: torch.rand_like(_empty()), stats.uniform()),
    ("uniform", lambda: _empty().uniform_(-3, 5), stats.uniform(-3, 8)),
    *[
        (
            "uniform",
            lambda i=i: torch.view_as_real(_empty().to(torch.complex64).uniform_(-3, 5))[:, i],
            stats.uniform(-3, 8),
        )
        for i in range(2)
    ],
    ("randn", lambda: torch.randn(N, device="xla"), stats.norm()),
    ("randn", lambda: torch.randn(N, device="xla", dtype=torch.float64), stats.norm()),
    ("randn", lambda: torch.randn(N, device="xla", dtype=torch.complex64).imag, stats.norm(0, 0.5**0.5)),
    ("randn_like", lambda: torch.randn_like(_empty()), stats.norm()),
    ("normal_functional", lambda: _empty().normal_(2, 3), stats.norm(2, 3)),
    ("normal.float_float", lambda: torch.normal(2.0, 3.0, (N,), device="xla"), stats.norm(2, 3)),
    ("normal.Tensor_float", lambda: torch.normal(_full(2.0), 3.0), stats.norm(2, 3)),
    ("normal.float_Tensor", lambda: torch.normal(2.0, _full(3.0)), stats.norm(2, 3)),
    ("normal.Tensor_Tensor", lambda: torch.normal(_full(2.0), _full(3.0)), stats.norm(2, 3)),
    ("log_normal", lambda: _empty().log_normal_(0.2, 0.5), stats.lognorm(0.5, scale=np.exp(0.2))),
    ("exponential", lambda: _empty().exponential_(4), stats.expon(scale=0.25)),
    ("cauchy", lambda: _empty().cauchy_(2, 3), stats.cauchy(2, 3)),
    ("_standard_gamma", lambda: torch._standard_gamma(_full(0.3)), stats.gamma(0.3)),
    ("_standard_gamma", lambda: torch._standard_gamma(_full(7.0)), stats.gamma(7)),
    (
        "_sample_dirichlet",
        lambda: torch._sample_dirichlet(torch.tensor([1.0, 2.0, 5.0], device="xla").expand(N, 3))[:, 1],
        stats.beta(2, 6),
    ),
    (
        "rrelu_with_noise_functional",
        lambda: torch.ops.aten.rrelu_with_noise_functional(_full(-1.0), _empty(), 0.1, 0.3, True)[1],
        stats.uniform(0.1, 0.2),
    ),
]


def _firsts_of_permutations(count: int) -> torch.Tensor:
    """On the CPU: each part of the sample runs the same program."""
    return torch.stack([torch.randperm(5, device="xla")[0] for _ in range(count)]).cpu()


#: Name of the rule, how to draw integers from 0, their probabilities (the remainder: any larger number).
DISCRETE: list[tuple[str, Draw, Any]] = [
    ("bernoulli", lambda: _full(0.3).bernoulli(), [0.7, 0.3]),
    ("bernoulli.p", lambda: _empty().bernoulli_(0.8), [0.2, 0.8]),
    ("bernoulli.Tensor", lambda: _empty().bernoulli_(_full(0.3)), [0.7, 0.3]),
    ("native_dropout", lambda: torch.native_dropout(_full(1.0), 0.25, True)[1], [0.25, 0.75]),
    ("binomial", lambda: torch.binomial(_full(10.0), _full(0.3)), stats.binom(10, 0.3).pmf(np.arange(8))),
    ("binomial", lambda: torch.binomial(_full(200.0), _full(0.1)), stats.binom(200, 0.1).pmf(np.arange(35))),
    ("poisson", lambda: torch.poisson(_full(4.0)), stats.poisson(4).pmf(np.arange(12))),
    ("poisson", lambda: torch.poisson(_full(30.0)), stats.poisson(30).pmf(np.arange(50))),
    ("geometric", lambda: _empty().geometric_(0.3) - 1, stats.geom(0.3).pmf(np.arange(1, 15))),
    ("geometric", lambda: _empty(torch.int64).geometric_(0.3) - 1, stats.geom(0.3).pmf(np.arange(1, 15))),
    ("randint", lambda: torch.randint(7, (N,), device="xla"), [1 / 7] * 7),
    ("randint.low", lambda: torch.randint(-3, 4, (N,), device="xla") + 3, [1 / 7] * 7),
    ("randint_like", lambda: torch.randint_like(_empty(), 7), [1 / 7] * 7),
    ("randint_like.low_dtype", lambda: torch.randint_like(_empty(), 2, 9) - 2, [1 / 7] * 7),
    ("randint_like.Tensor", lambda: torch.randint_like(_empty(), torch.tensor(7)), [1 / 7] * 7),
    ("random", lambda: _empty(torch.uint8).random_(), [1 / 256] * 256),
    ("random", lambda: _empty(torch.int64).random_() % 8, [1 / 8] * 8),
    ("random.to", lambda: _empty(torch.int32).random_(7), [1 / 7] * 7),
    ("random.from", lambda: _empty(torch.int16).random_(-3, 4) + 3, [1 / 7] * 7),
    ("multinomial", lambda: _choices(1, 0, 3), [0.25, 0, 0.75]),
    ("multinomial", lambda: _choices(1, 0, 3, replacement=False), [0.25, 0, 0.75]),
    ("multinomial", _draw_without_replacement, _orders(1, 2, 3)),
    ("randperm", lambda: torch.cat([_firsts_of_permutations(10) for _ in range(6)]), [0.2] * 5),
]

#: Random rules that no row above reaches, and why.
ELSEWHERE = {
    name: "torch.Generator is the CPU's: these calls run there, with its numbers (test_generator_of_the_cpu)"
    for name in RULES
    if "generator" in name.split(".")[-1]
} | {"aten::_scaled_dot_product_efficient_attention": "its dropout: tests/lowering/test_rules_attention.py"}


def _sample(name: str, draw: Draw) -> np.ndarray[Any, Any]:
    torch.manual_seed(20)
    with counts() as moved:
        values: np.ndarray[Any, Any] = draw().double().cpu().numpy()
    assert moved.fallbacks == set()
    # Counter names lack the overload and have the called variant.
    function = name.split(".")[0]
    assert moved[f"xla::{function}"] + moved[f"xla::{function.removesuffix('_functional')}_"] > 0, sorted(moved)
    return values


def _named(rows: list[tuple[str, Draw, Any]]) -> list[Any]:
    return [pytest.param(*row, id=f"{row[0]}-{number}") for number, row in enumerate(rows)]


@pytest.mark.parametrize(("name", "draw", "distribution"), _named(CONTINUOUS))
def test_continuous(name: str, draw: Draw, distribution: Any) -> None:
    assert stats.kstest(_sample(name, draw), distribution.cdf).pvalue > LEVEL


@pytest.mark.parametrize(("name", "draw", "probabilities"), _named(DISCRETE))
def test_discrete(name: str, draw: Draw, probabilities: Any) -> None:
    values, chances = _sample(name, draw), np.asarray(probabilities)
    assert (values == values.round()).all() and values.min() >= 0
    seen = np.bincount(values.clip(max=len(chances)).astype(int), minlength=len(chances) + 1)
    chances = np.append(chances, max(0.0, 1 - chances.sum()))
    assert not seen[chances < 1e-12].any(), "impossible numbers"
    # The test requires an expected count of five per cell: rare numbers share one.
    rare = chances * len(values) < 5
    groups = [*np.flatnonzero(~rare)]
    observed = np.append(seen[groups], seen[rare].sum())
    expected = np.append(chances[groups], chances[rare].sum()) * len(values)
    kept = expected > 1e-9
    assert stats.chisquare(observed[kept], expected[kept] * observed.sum() / expected.sum()).pvalue > LEVEL


@pytest.mark.parametrize(("name", "draw", "_"), _named([*CONTINUOUS, *DISCRETE]))
def test_equal_seeds(name: str, draw: Draw, _: Any) -> None:
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append([draw().cpu(), draw().cpu()])
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1]), "equal seeds"
    assert not torch.equal(runs[0][0], runs[2][0]), "another seed"
    assert not torch.equal(runs[0][0], runs[0][1]), "another draw"


def test_every_random_rule_has_a_row() -> None:
    covered = {f"aten::{name}" for name, *_ in [*CONTINUOUS, *DISCRETE]}
    random = {name for name, rule in RULES.items() if rule.random}
    assert random - set(ELSEWHERE) <= covered
    assert not covered & set(ELSEWHERE)


def test_generator_of_the_cpu() -> None:
    with counts() as moved, pytest.warns(UserWarning, match="runs on the CPU"):
        got = torch.randn(5, generator=torch.Generator().manual_seed(8), device="xla")
    assert torch.equal(got.cpu(), torch.randn(5, generator=torch.Generator().manual_seed(8)))
    assert moved.fallbacks == {"aten::randn.generator"}
