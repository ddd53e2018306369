"""Rules of pooling and its gradients, compared with the CPU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_xla._engine.lowering.rules.adaptive_pooling
import torch_xla._engine.lowering.rules.fractional_pooling  # noqa: F401
from tests.support.rule_check import check, each, to_array, to_tensor
from torch_xla._engine.lowering.rules import pooling
from torch_xla._engine.lowering.sliding_windows import SlidingWindows

aten = torch.ops.aten

# shape, kernel, stride, padding, dilation, ceil_mode
MAX = [
    ((2, 3, 8, 9), [2, 2], [2, 2], [0, 0], [1, 1], False),
    ((2, 3, 8, 9), [3], [2], [1], [1], False),
    ((2, 3, 8, 9), [3, 2], [], [1, 1], [1, 1], True),
    ((2, 3, 11, 13), [3, 2], [2, 3], [1, 0], [2, 3], True),
    ((3, 8, 9), [3, 3], [1, 1], [1, 1], [1, 1], False),
    ((2, 3, 5, 5), [1, 1], [3, 3], [0, 0], [1, 1], True),
    ((1, 2, 20, 20), [9, 9], [1, 1], [4, 4], [1, 1], False),
    ((2, 2, 6, 7, 8), [2, 3, 2], [2, 2, 2], [1, 1, 0], [1, 1, 2], True),
    ((2, 2, 6, 7, 8), [3], [3], [0], [1], False),
]
DTYPES = [torch.float32, torch.bfloat16]


def data(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.randint(-3, 4, shape) / 2).to(dtype)  # few distinct values cause many ties


def spatial(shape: tuple[int, ...], kernel: list[int]) -> int:
    return 3 if len(shape) == 5 or len(kernel) == 3 else 2


@each("case", MAX)
@each("dtype", DTYPES)
def test_max_pool(case: tuple, dtype: torch.dtype) -> None:
    shape, *rest = case
    n, x = spatial(shape, rest[0]), data(shape, dtype)
    check(f"aten::max_pool{n}d_with_indices", x, *rest)
    y, indices = getattr(aten, f"max_pool{n}d_with_indices")(x, *rest)
    grad = torch.randn_like(y)
    if not rest[1]:
        rest[1] = rest[0]
    loose = {"rtol": 2e-2, "atol": 1e-1} if dtype == torch.bfloat16 else {}  # the CPU adds gradients in 16 bits
    check(f"aten::max_pool{n}d_with_indices_backward", grad, x, *rest, indices, **loose)


@each("kernel", [3, 9])
@each("value", [-math.inf, math.nan, math.inf])
def test_max_pool_special_values(kernel: int, value: float) -> None:
    x = data((1, 2, 10, 10))
    x[0, 0, 3, 4] = value
    x[0, 1] = -math.inf
    check("aten::max_pool2d_with_indices", x, [kernel, kernel], [2, 2], [kernel // 2, kernel // 2])


def test_max_pool_integers() -> None:
    check("aten::max_pool2d_with_indices", torch.randint(-9, 9, (2, 3, 8, 8)), [3, 3], [2, 2], [1, 1])


# shape, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE = [
    ((2, 3, 8, 9), [2, 2], [2, 2], [0, 0], False, True, None),
    ((2, 3, 8, 9), [3], [2], [1], False, True, None),
    ((2, 3, 8, 9), [3, 2], [2, 2], [1, 1], True, False, None),
    ((2, 3, 8, 9), [3, 2], [3, 2], [1, 1], True, True, None),
    ((3, 8, 9), [3, 3], [1, 2], [1, 0], False, False, 5),
    ((1, 1, 9, 9), [2, 2], [4, 4], [0, 0], True, True, 3),
    ((2, 2, 6, 7, 8), [2, 3, 2], [2, 2, 2], [1, 1, 0], True, True, None),
    ((2, 2, 6, 7, 8), [3], [2], [1], False, False, None),
]


@each("case", AVERAGE)
@each("dtype", DTYPES)
def test_avg_pool(case: tuple, dtype: torch.dtype) -> None:
    shape, *rest = case
    n, x = spatial(shape, rest[0]), data(shape, dtype)
    if n == 3 and dtype == torch.bfloat16:
        return  # the CPU has no kernel
    check(f"aten::avg_pool{n}d", x, *rest)
    grad = torch.randn_like(getattr(aten, f"avg_pool{n}d")(x, *rest))
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(f"aten::avg_pool{n}d_backward", grad, x, *rest, **loose)


def test_avg_pool_integers_and_default_stride() -> None:
    check("aten::avg_pool2d", torch.randint(-9, 9, (2, 3, 8, 8)), [3, 3])


ADAPTIVE = [
    ((2, 3, 8, 9), [1, 1]),
    ((2, 3, 8, 9), [4, 3]),
    ((2, 3, 7, 10), [3, 4]),
    ((3, 4, 5), [7, 9]),
    ((2, 3, 4, 5), [8, 5]),
    ((0, 3, 4, 5), [2, 2]),
    ((1, 2, 40, 40), [3, 3]),
    ((2, 2, 5, 6, 7), [2, 3, 3]),
    ((2, 2, 6, 6, 7), [3, 2, 7]),
]


@each("case", ADAPTIVE)
@each("dtype", DTYPES)
def test_adaptive_avg_pool(case: tuple, dtype: torch.dtype) -> None:
    shape, size = case
    x, n = data(shape, dtype), len(size)
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    check(f"aten::_adaptive_avg_pool{n}d", x, size, **loose)
    grad = torch.randn_like(getattr(aten, f"_adaptive_avg_pool{n}d")(x, size))
    check(f"aten::_adaptive_avg_pool{n}d_backward", grad, x, **loose)


@each("case", ADAPTIVE)
def test_adaptive_max_pool(case: tuple) -> None:
    shape, size = case
    x, n = data(shape), len(size)
    check(f"aten::adaptive_max_pool{n}d", x, size)
    y, indices = getattr(aten, f"adaptive_max_pool{n}d")(x, size)
    check(f"aten::adaptive_max_pool{n}d_backward", torch.randn_like(y), x, indices)


def test_adaptive_average_keeps_infinities_in_their_windows() -> None:
    x = data((1, 1, 7, 10))
    x[0, 0, 0, 0] = math.inf
    check("aten::_adaptive_avg_pool2d", x, [3, 4])


def test_max_unpool() -> None:
    x = torch.randn(2, 3, 8, 8)
    y, indices = aten.max_pool2d_with_indices(x, [2, 2])
    check("aten::max_unpool2d", y, indices, [8, 8])
    check("aten::max_unpool2d", y[0], indices[0], [9, 8])
    y, indices = aten.max_pool3d_with_indices(torch.randn(1, 2, 4, 4, 4), [2, 2, 2])
    check("aten::max_unpool3d", y, indices, [4, 4, 4], [2, 2, 2], [0, 0, 0])


@pytest.mark.parametrize("case", [case for case in MAX if set(case[4]) == {1}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_maxima_on_accelerators(case: tuple[object, ...], dtype: torch.dtype) -> None:
    """On TPUs and GPUs the gradient is a select-and-scatter; of ties, the first element gets the gradient."""
    shape, kernel, stride, padding, dilation, ceil_mode = case
    n = 3 if len(shape) == 5 else 2
    x = data(shape, torch.float32).mul(2).round().to(dtype).requires_grad_()
    pooled = (torch.nn.functional.max_pool3d if n == 3 else torch.nn.functional.max_pool2d)(
        x, kernel, stride or None, padding, dilation, ceil_mode
    )
    grad = data(tuple(pooled.shape), dtype)
    pooled.backward(grad)
    windows = SlidingWindows.over(to_array(x), n, kernel, stride, padding, dilation, ceil_mode)
    found = to_tensor(pooling._max_pool_grad_by_vjp(windows, jnp.asarray(to_array(grad)), to_array(x)))
    torch.testing.assert_close(found, x.grad, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


# shape, kernel, outputs
FRACTIONAL = [
    ((2, 3, 9, 11), [2, 3], [4, 5]),
    ((3, 9, 11), [2, 2], [5, 10]),
    ((2, 3, 6, 7), [6, 2], [1, 3]),
    ((2, 2, 6, 7, 8), [2, 3, 2], [3, 2, 4]),
    ((2, 5, 6, 4), [2, 2, 2], [1, 4, 2]),
    ((0, 3, 5, 5), [2, 2], [2, 2]),
]


@each("case", FRACTIONAL)
@each("dtype", [torch.float32, torch.float64])
@each("special", [None, math.nan, -math.inf])
def test_fractional_max_pool(case: tuple, dtype: torch.dtype, special: float | None) -> None:
    """Includes ties and several NaNs in a window, and windows that are all -inf."""
    shape, kernel, outputs = case
    n, x = len(kernel), data(shape, dtype)
    if special is not None:
        x.flatten()[:: 3 if special != special else 1] = special
    samples = torch.rand((*(shape[:-n] if len(shape) > n + 1 else (1, *shape[:-n])), n), dtype=dtype)
    op = f"aten::fractional_max_pool{n}d"
    check(op, x, kernel, outputs, samples)
    y, indices = getattr(aten, f"fractional_max_pool{n}d")(x, kernel, outputs, samples)
    if special is None:
        check(f"{op}_backward", torch.randn_like(y), x, kernel, outputs, indices)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 3, 8, 8)])
def test_max_pool_backward_as_on_accelerators(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for accelerators searches the maxima again; of images with and without a batch."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    x, geometry = torch.randn(shape), ([3, 3], [2, 2], [1, 1], [1, 1], False)
    y, indices = aten.max_pool2d_with_indices(x, *geometry)
    check("aten::max_pool2d_with_indices_backward", torch.randn_like(y), x, *geometry, indices)
