"""Rules of random numbers: shapes, dtypes, determinism, and the first moments."""

from __future__ import annotations

import math
from typing import Any

import jax
import pytest
import torch

import torch_xla._engine.lowering.rules.random
import torch_xla._engine.lowering.rules.random_discrete  # noqa: F401
from tests.support.rule_check import run

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
COUNT = 20_000


def draw(name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return the numbers that a rule draws, after comparing shape and dtype with the CPU's."""
    with jax.enable_x64(True):
        expected, got = run(f"aten::{name}", *args, **kwargs)
    assert [(g.shape, g.dtype) for g in got] == [(e.shape, e.dtype) for e in expected]
    return got[0]


def assert_moments(x: torch.Tensor, mean: float, std: float) -> None:
    """Check the mean within five standard errors, and the standard deviation within 5 %."""
    assert abs(x.double().mean().item() - mean) < 5 * std / math.sqrt(x.numel()) + 1e-3 * abs(mean)
    assert abs(x.double().std().item() - std) < 0.05 * std


UNIFORM_STD, GENERATOR = 1 / math.sqrt(12), None
# (name, arguments, mean, standard deviation); "x" is replaced by a tensor of COUNT elements.
CONTINUOUS: list[tuple[str, tuple[Any, ...], float, float]] = [
    ("rand", ([COUNT],), 0.5, UNIFORM_STD),
    ("rand_like", ("x",), 0.5, UNIFORM_STD),
    ("randn", ([COUNT],), 0, 1),
    ("randn_like", ("x",), 0, 1),
    ("uniform", ("x",), 0.5, UNIFORM_STD),
    ("uniform", ("x", -3.0, 5.0), 1, 8 * UNIFORM_STD),
    ("normal_functional", ("x", 2.0, 3.0), 2, 3),
    ("log_normal", ("x", 0.2, 0.5), math.exp(0.325), math.exp(0.325) * math.sqrt(math.exp(0.25) - 1)),
    ("exponential", ("x",), 1, 1),
    ("exponential", ("x", 4.0), 0.25, 0.25),
    ("geometric", ("x", 0.3), 1 / 0.3, math.sqrt(0.7) / 0.3),
]


@pytest.mark.parametrize(("name", "args", "mean", "std"), CONTINUOUS)
@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_moments(name: str, args: tuple[Any, ...], mean: float, std: float, dtype: torch.dtype) -> None:
    like = torch.zeros(COUNT, dtype=dtype)
    x = draw(name, like, *args[1:]) if args[0] == "x" else draw(name, *args, dtype=dtype)
    assert_moments(x, mean, std)


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_supports(dtype: torch.dtype) -> None:
    x = torch.zeros(COUNT, dtype=dtype)
    for uniform in (draw("rand", [COUNT], dtype=dtype), draw("uniform", x)):
        assert uniform.min() >= 0
        assert uniform.max() < 1
    assert draw("exponential", x).min() > 0
    assert draw("geometric", x, 0.9).min() == 1
    assert draw("cauchy", x).isfinite().all()


def test_geometric_and_cauchy() -> None:
    assert_moments(draw("geometric", torch.zeros(COUNT, dtype=torch.int64), 0.3), 1 / 0.3, math.sqrt(0.7) / 0.3)
    x = draw("cauchy", torch.zeros(COUNT), 2.0, 3.0)
    quartiles = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 2.0, 5.0]), atol=0.3, rtol=0)


def test_shapes() -> None:
    for size in ([], [2, 0, 3], [4, 5]):
        draw("randn", size, dtype=torch.complex64)
        draw("randint", 5, size)
        draw("bernoulli", torch.full(size, 0.5))
        draw("uniform", torch.zeros(size, dtype=BF16))
    draw("rand", [2, 3], dtype=torch.complex128)
    draw("rand_like", torch.zeros(2, 3), dtype=F64)
    draw("randn.generator", [3], generator=None)


def test_normal_with_tensors() -> None:
    mean, std = torch.full((COUNT, 1), 2.0), torch.tensor([0.5, 3.0])
    x = draw("normal.Tensor_Tensor", mean, std)
    assert_moments(x[:, 0], 2, 0.5)
    assert_moments(x[:, 1], 2, 3)
    assert_moments(draw("normal.Tensor_float", mean, 2.0), 2, 2)
    assert_moments(draw("normal.float_Tensor", -1.0, mean.to(BF16)), -1, 2)
    assert_moments(draw("normal.float_float", -1.0, 0.5, [COUNT]), -1, 0.5)


@pytest.mark.parametrize("dtype", [F32, BF16, F64, torch.int64, torch.bool])
def test_bernoulli(dtype: torch.dtype) -> None:
    assert_moments(draw("bernoulli.p", torch.zeros(COUNT, dtype=dtype), 0.3), 0.3, math.sqrt(0.21))
    p = torch.tensor([0.0, 0.25, 1.0]).expand(COUNT, 3)
    x = draw("bernoulli.Tensor", torch.zeros(COUNT, 3, dtype=dtype), p)
    assert not x[:, 0].any()
    assert x[:, 2].all()
    assert_moments(x[:, 1], 0.25, math.sqrt(0.1875))


def test_bernoulli_of_probabilities() -> None:
    for dtype in (F32, BF16):
        assert_moments(draw("bernoulli", torch.full((COUNT,), 0.5, dtype=dtype)), 0.5, 0.5)
    assert draw("bernoulli.p", torch.zeros(9), 1.0).all()
    assert not draw("bernoulli.p", torch.zeros(9), 0.0).any()


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.full((COUNT,), 3.0, dtype=dtype)
    with jax.enable_x64(True):
        _, (y, mask) = run("aten::native_dropout", x, 0.25, True)
        _, (kept, all_true) = run("aten::native_dropout", x, 0.25, False)
        _, (dropped, none) = run("aten::native_dropout", x, 1.0, None)
    assert_moments(mask, 0.75, math.sqrt(0.1875))
    torch.testing.assert_close(y, torch.where(mask, 4.0, 0.0).to(dtype))
    assert kept.equal(x)
    assert all_true.all()
    assert not dropped.any()
    assert not none.any()


def test_dropout_backward() -> None:
    grad, mask = torch.randn(4, 5), torch.rand(4, 5) > 0.5
    for dtype in (F32, F16):
        with jax.enable_x64(True):
            expected, got = run("aten::native_dropout_backward", grad.to(dtype), mask, 1.25)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("name", "args", "low", "high"),
    [
        ("randint", (7, [COUNT]), 0, 6),
        ("randint.low", (-3, 4, [COUNT]), -3, 3),
        ("randint_like", (torch.zeros(COUNT), 7), 0, 6),
        ("randint_like.low_dtype", (torch.zeros(COUNT, dtype=torch.int8), -3, 4), -3, 3),
        ("random.to", (torch.zeros(COUNT, dtype=torch.int32), 5), 0, 4),
        ("random.from", (torch.zeros(COUNT), -2, 3), -2, 2),
        ("random.from", (torch.zeros(COUNT, dtype=torch.int8), 120, None), 120, 127),
        ("random", (torch.zeros(COUNT, dtype=torch.uint8),), 0, 255),
        ("random", (torch.zeros(COUNT, dtype=torch.bool),), 0, 1),
        ("random", (torch.zeros(COUNT, dtype=BF16),), 0, 256),
    ],
)
def test_whole_numbers(name: str, args: tuple[Any, ...], low: int, high: int) -> None:
    x = draw(name, *args)
    assert x.min() == low
    assert x.max() == high
    std = math.sqrt(((high - low + 1) ** 2 - 1) / 12)
    assert_moments(x, (low + high) / 2, std)


def test_large_whole_numbers() -> None:
    limit = 2**63
    x = draw("random", torch.zeros(COUNT, dtype=torch.int64))
    assert_moments(x.double() / limit, 0.5, UNIFORM_STD)
    assert x.min() >= 0
    x = draw("random.from", torch.zeros(COUNT, dtype=torch.int64), -limit, None)
    assert_moments(x.double() / limit, 0, 2 * UNIFORM_STD)
    assert_moments(draw("randint", 2**40, [COUNT]).double() / 2**40, 0.5, UNIFORM_STD)
    assert_moments(draw("random", torch.zeros(COUNT)).double() / 2**24, 0.5, UNIFORM_STD)
    assert draw("randint", 5, [COUNT], dtype=F32).max() == 4
    assert draw("randint_like.Tensor", torch.zeros(COUNT), torch.tensor(5)).max() == 4


@pytest.mark.parametrize("n", [0, 1, 50])
def test_randperm(n: int) -> None:
    x = draw("randperm", n)
    assert x.sort().values.equal(torch.arange(n))
    assert draw("randperm", n, dtype=torch.int32).unique().numel() == n


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
def test_multinomial_with_replacement(dtype: torch.dtype) -> None:
    weights = torch.tensor([[0.0, 1, 3, 0], [2, 0, 0, 2]], dtype=dtype)
    x = draw("multinomial", weights, COUNT, True)
    assert_moments(x[0] == 2, 0.75, math.sqrt(0.1875))
    assert set(x[0].tolist()) == {1, 2}
    assert set(x[1].tolist()) == {0, 3}
    assert draw("multinomial", weights[0], 100, True).unique().tolist() == [1, 2]


def test_multinomial_without_replacement() -> None:
    weights = torch.tensor([0.0, 1, 3, 0, 2]).expand(4000, 5)
    x = draw("multinomial", weights, 3)
    assert x.sort().values.unique(dim=0).tolist() == [[1, 2, 4]]
    assert_moments(x[:, 0] == 2, 0.5, 0.5)
    assert draw("multinomial", weights[0], 2).unique().numel() == 2


def test_counts() -> None:
    for dtype in (F32, BF16):
        assert_moments(draw("poisson", torch.full((COUNT,), 4.0, dtype=dtype)), 4, 2)
    x = draw("binomial", torch.full((COUNT,), 10.0), torch.full((COUNT,), 0.3))
    assert_moments(x, 3, math.sqrt(2.1))
    assert not draw("poisson", torch.zeros(5)).any()


def test_gamma_and_dirichlet() -> None:
    assert_moments(draw("_standard_gamma", torch.full((COUNT,), 3.0)), 3, math.sqrt(3))
    x = draw("_sample_dirichlet", torch.tensor([1.0, 2, 5]).expand(COUNT, 3))
    torch.testing.assert_close(x.sum(1), torch.ones(COUNT))
    torch.testing.assert_close(x.mean(0), torch.tensor([0.125, 0.25, 0.625]), atol=0.01, rtol=0)
    alpha = torch.rand(20, dtype=F64) * 4 + 0.5
    with jax.enable_x64(True):
        expected, got = run("aten::_standard_gamma_grad", alpha, torch._standard_gamma(alpha))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rrelu(dtype: torch.dtype) -> None:
    x = torch.tensor([-1.0, 2.0]).expand(COUNT, 2).to(dtype)
    with jax.enable_x64(True):
        _, (y, noise) = run("aten::rrelu_with_noise_functional", x, torch.zeros_like(x), 0.1, 0.3, True)
        _, (plain, _) = run("aten::rrelu_with_noise_functional", x, torch.zeros_like(x), 0.1, 0.3, False)
    assert_moments(noise[:, 0], 0.2, 0.2 * UNIFORM_STD)
    assert (noise[:, 1] == 1).all()
    torch.testing.assert_close(y, x * noise)
    torch.testing.assert_close(plain, torch.nn.functional.leaky_relu(x, 0.2))


def test_keys_differ_between_calls_and_steps() -> None:
    from torch_xla._engine.lowering import RULES
    from torch_xla._engine.lowering.recorder_ops import key_data
    from torch_xla._engine.lowering.registry import LoweringRuleContext

    def uniform(seed: int, draws: int) -> jax.Array:
        context = LoweringRuleContext("aten::rand", [((50,), F32)], key_data(jax.numpy.asarray(seed, "int64"), draws))
        return RULES["aten::rand"].function(context, [50])

    with jax.enable_x64(True):
        first = uniform(1, 0)
        assert (first == uniform(1, 0)).all()
        assert not (first == uniform(1, 1)).any()
        assert not (first == uniform(2, 0)).any()
        later = (1 + 3 * 0x9E3779B900000001 + 2**63) % 2**64 - 2**63  # the state three draws later, as an int64
        assert (uniform(1, 5) == uniform(later, 2)).all()
