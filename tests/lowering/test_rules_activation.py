"""Rules of activation functions and their gradients, compared with the CPU."""

from __future__ import annotations

import math
from typing import Any

import jax
import torch

import torch_xla._engine.lowering.rules.activation
import torch_xla._engine.lowering.rules.activation_backward  # noqa: F401
from tests.support.rule_check import check, each, run

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
EDGES = torch.tensor([0.0, -0.0, 0.5, -0.5, 1, -1, 3, -3, 6, -6, 25, -25, 100, -100, math.inf, -math.inf, math.nan])


def floats(dtype: torch.dtype = F32, *shape: int, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


INPUTS = [floats(), floats(F64, 2, 3, 4), floats(BF16), floats(F16), torch.tensor(-1.5), torch.empty(0, 3)]

# (operator, arguments after the tensor)
ACTIVATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("celu", ()),
    ("celu", (0.7,)),
    ("elu", ()),
    ("elu", (0.7, 1.3, 0.9)),
    ("gelu", ()),
    ("hardshrink", ()),
    ("hardshrink", (1.5,)),
    ("hardsigmoid", ()),
    ("hardswish", ()),
    ("hardtanh", ()),
    ("hardtanh", (-0.3, 2)),
    ("leaky_relu", ()),
    ("leaky_relu", (0.3,)),
    ("log_sigmoid_forward", ()),
    ("mish", ()),
    ("relu", ()),
    ("relu6", ()),
    ("selu", ()),
    ("silu", ()),
    ("softplus", ()),
    ("softplus", (2.5, 4)),
    ("softshrink", ()),
    ("softshrink", (1.5,)),
    ("threshold", (0.7, -2.5)),
]


@each(("name", "args"), ACTIVATIONS)
def test_activation(name: str, args: tuple[Any, ...]) -> None:
    for x in INPUTS:
        check(f"aten::{name}", x, *args)
    # The CPU's vectorized gelu(inf) is nan; its scalar code, its tanh variant and jax return inf.
    edges = EDGES[:-3] if name == "gelu" else EDGES
    check(f"aten::{name}", edges, *args, rtol=1e-5, atol=1e-6)


def test_gelu_by_tanh() -> None:
    for x in [*INPUTS, EDGES]:
        check("aten::gelu", x, approximate="tanh", rtol=1e-2 if x.dtype in (F16, BF16) else 1e-5, atol=1e-5)


def test_activation_of_integers() -> None:
    x = torch.arange(-5, 5)
    for name, args in (("relu", ()), ("threshold", (2, 7)), ("hardtanh", (-2, 3))):
        check(f"aten::{name}", x, *args)


def test_prelu() -> None:
    for dtype in (F32, BF16):
        check("aten::_prelu_kernel", floats(dtype), floats(dtype, 4, seed=1).expand(3, 4))
        check("aten::_prelu_kernel_backward", floats(dtype), floats(dtype, seed=1), floats(dtype, 1).expand(3, 4))


@each("dim", [0, -1, 1])
def test_glu(dim: int) -> None:
    for dtype in (F32, F64, BF16):
        x = floats(dtype, 2, 4, 6)
        check("aten::glu", x, dim, rtol=1e-2 if dtype == BF16 else 1e-5, atol=1e-2 if dtype == BF16 else 1e-5)
        grad = torch.ones_like(torch.ops.aten.glu(x, dim)) * 0.7
        check("aten::glu_backward", grad, x, dim, rtol=2e-2 if dtype == BF16 else 1e-5, atol=1e-2)


# (operator, arguments after the gradient and the tensor)
GRADIENTS: list[tuple[str, tuple[Any, ...]]] = [
    ("gelu_backward", ()),
    ("hardshrink_backward", (0.5,)),
    ("hardsigmoid_backward", ()),
    ("hardswish_backward", ()),
    ("hardtanh_backward", (-1.5, 2)),
    ("leaky_relu_backward", (0.3, False)),
    ("leaky_relu_backward", (0.3, True)),
    ("mish_backward", ()),
    ("sigmoid_backward", ()),
    ("silu_backward", ()),
    ("softplus_backward", (2.5, 4)),
    ("softshrink_backward", (1.5,)),
    ("tanh_backward", ()),
    ("threshold_backward", (0,)),
    ("threshold_backward", (0.7,)),
]


@each(("name", "args"), GRADIENTS)
def test_gradient(name: str, args: tuple[Any, ...]) -> None:
    for x in INPUTS:
        grad = floats(x.dtype, *x.shape, seed=2).reshape(x.shape) if x.ndim else torch.tensor(0.7)
        loose = {"rtol": 2e-2, "atol": 2e-2} if x.dtype in (F16, BF16) else {"rtol": 1e-5, "atol": 1e-5}
        check(f"aten::{name}", grad, x, *args, **loose)
    check(f"aten::{name}", torch.ones_like(EDGES), EDGES, *args, rtol=1e-5, atol=1e-6)


@each("is_result", [False, True])
def test_elu_backward(is_result: bool) -> None:
    for x in INPUTS:
        loose = {"rtol": 2e-2, "atol": 2e-2} if x.dtype in (F16, BF16) else {"rtol": 1e-5, "atol": 1e-5}
        check("aten::elu_backward", torch.ones_like(x), 0.7, 1.3, 0.9, is_result, x, **loose)


def test_gelu_backward_by_tanh() -> None:
    for dtype in (F32, F64):
        check("aten::gelu_backward", floats(dtype), floats(dtype, seed=1), approximate="tanh", rtol=1e-5, atol=1e-5)


def test_gradients_of_complex_numbers() -> None:
    grad, y = torch.complex(floats(), floats(seed=1)), torch.complex(floats(seed=2), floats(seed=3))
    for name in ("sigmoid_backward", "tanh_backward"):
        check(f"aten::{name}", grad, y, rtol=1e-5, atol=1e-5)


def test_log_sigmoid_backward_needs_no_buffer() -> None:
    for x in INPUTS:
        _, buffer = torch.ops.aten.log_sigmoid_forward(x)
        with jax.enable_x64(True):
            expected, _ = run("aten::log_sigmoid_backward", torch.ones_like(x), x, buffer)
            _, got = run("aten::log_sigmoid_backward", torch.ones_like(x), x, buffer * math.nan)
        torch.testing.assert_close(got, expected)


@each("training", [False, True])
def test_rrelu_backward(training: bool) -> None:
    noise = floats(seed=1).abs()
    check("aten::rrelu_with_noise_backward", floats(), floats(seed=2), noise, 0.1, 0.3, training, False)
