"""Rules of normalization and softmax and their gradients, compared with the CPU."""

from __future__ import annotations

import math

import torch

import torch_xla._engine.lowering.rules.normalization
import torch_xla._engine.lowering.rules.softmax  # noqa: F401
from tests.support.rule_check import check, each

aten = torch.ops.aten
# (dtype of the input, dtype of the parameters)
DTYPES = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)]
SHAPES = [(4, 3), (2, 3, 4, 5)]


def loose(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-2, "atol": 8e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}


def batch_operands(shape: tuple[int, ...], dtype: torch.dtype, parameters: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(len(shape))
    c = shape[1]
    weight, bias, mean = (torch.randn(c, dtype=parameters) for _ in range(3))
    return [torch.randn(shape, dtype=dtype) * 2 + 1, weight, bias, mean, torch.rand(c, dtype=parameters) + 0.5]


@each("shape", SHAPES)
@each(("dtype", "parameters"), DTYPES)
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype, parameters: torch.dtype) -> None:
    x, w, b, mean, var = operands = batch_operands(shape, dtype, parameters)
    for training in (True, False):
        check("aten::native_batch_norm", *operands, training, 0.1, 1e-5, **loose(dtype))
        check("aten::_native_batch_norm_legit_functional", *operands, training, 0.3, 1e-5, **loose(dtype))
    check("aten::_native_batch_norm_legit_no_training", x, None, None, mean, var, 0.1, 1e-3, **loose(dtype))
    check("aten::_native_batch_norm_legit.no_stats", x, w, b, True, 0.1, 1e-5, **loose(dtype))
    check("aten::_native_batch_norm_legit_no_training", *operands, 0.1, 1e-5, **loose(dtype))
    check("aten::_batch_norm_no_update", *operands, 0.1, 1e-5, **loose(dtype))
    check("aten::_batch_norm_with_update_functional", *operands, 0.1, 1e-5, **loose(dtype))


@each("shape", SHAPES)
@each(("dtype", "parameters"), DTYPES)
@each("train", [True, False])
def test_batch_norm_backward(shape: tuple[int, ...], dtype: torch.dtype, parameters: torch.dtype, train: bool) -> None:
    x, w, b, mean, var = batch_operands(shape, dtype, parameters)
    _, save_mean, save_invstd = aten.native_batch_norm(x, w, b, mean.clone(), var.clone(), train, 0.1, 1e-5)
    stats = mean, var, save_mean, save_invstd, train, 1e-5
    grad = torch.randn_like(x)
    check("aten::native_batch_norm_backward", grad, x, w, *stats, [True] * 3, **loose(dtype))
    check("aten::native_batch_norm_backward", grad, x, w, *stats, [False, True, False], **loose(dtype))
    if dtype == parameters:
        check("aten::native_batch_norm_backward", grad, x, None, *stats, [True, False, False], **loose(dtype))


@each(("shape", "n"), [((4, 6), 1), ((2, 3, 6), 1), ((2, 3, 4, 5), 2), ((3,), 1)])
@each(("dtype", "parameters"), DTYPES)
@each("affine", [True, False])
def test_layer_norm(shape: tuple, n: int, dtype: torch.dtype, parameters: torch.dtype, affine: bool) -> None:
    normal = shape[-n:]
    torch.manual_seed(len(shape))
    x, grad = torch.randn(shape, dtype=dtype) * 2 + 1, torch.randn(shape, dtype=dtype)
    w, b = (torch.randn(normal, dtype=parameters) for _ in range(2)) if affine else (None, None)
    check("aten::native_layer_norm", x, list(normal), w, b, 1e-5, **loose(dtype))
    _, mean, rstd = aten.native_layer_norm(x, list(normal), w, b, 1e-5)
    args = grad, x, list(normal), mean, rstd, w, b
    check("aten::native_layer_norm_backward", *args, [True, affine, affine], **loose(dtype))
    check("aten::native_layer_norm_backward", *args, [True, False, False], **loose(dtype))


def test_layer_norm_empty() -> None:
    w = torch.randn(4)
    check("aten::native_layer_norm", torch.randn(0, 4), [4], w, w, 1e-5)
    mean = torch.randn(0, 1)
    args = torch.randn(0, 4), torch.randn(0, 4), [4], mean, mean, w, w
    check("aten::native_layer_norm_backward", *args, [True, True, True])


@each(("shape", "groups"), [((2, 4, 3), 2), ((2, 6, 3, 5), 3), ((3, 8), 4)])
@each(("dtype", "parameters"), DTYPES)
@each("affine", [True, False])
def test_group_norm(shape: tuple, groups: int, dtype: torch.dtype, parameters: torch.dtype, affine: bool) -> None:
    torch.manual_seed(len(shape))
    x, grad = torch.randn(shape, dtype=dtype) * 2 + 1, torch.randn(shape, dtype=dtype)
    w, b = (torch.randn(shape[1], dtype=parameters) for _ in range(2)) if affine else (None, None)
    sizes = shape[0], shape[1], math.prod(shape[2:]), groups
    check("aten::native_group_norm", x, w, b, *sizes, 1e-5, **loose(dtype))
    _, mean, rstd = aten.native_group_norm(x, w, b, *sizes, 1e-5)
    check("aten::native_group_norm_backward", grad, x, mean, rstd, w, *sizes, [True, affine, affine], **loose(dtype))


@each("p", [1, 2, 2.5, math.inf])
@each("dim", [0, -1])
@each("dtype", [torch.float32, torch.bfloat16])
def test_renorm(p: float, dim: int, dtype: torch.dtype) -> None:
    check("aten::renorm", torch.arange(12, dtype=dtype).reshape(3, 4) - 4, p, dim, 2.5)


SOFTMAX = [((3, 4), 1), ((3, 4), 0), ((2, 3, 4), -2), ((), 0), ((), -1), ((0, 3), 1), ((3, 0), 1), ((5,), 0)]


@each(("shape", "dim"), SOFTMAX)
@each("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_softmax(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x, grad = torch.randn(shape).to(dtype) * 4, torch.randn(shape).to(dtype)
    for name in ("_softmax", "_log_softmax"):
        check(f"aten::{name}", x, dim, False, **(loose(torch.bfloat16) if dtype.itemsize == 2 else {}))
        output = getattr(aten, name)(x, dim, False)
        check(f"aten::{name}_backward_data", grad, output, dim, dtype)
    check("aten::_safe_softmax", x, dim)


def test_softmax_infinities() -> None:
    x = torch.tensor([[-math.inf, -math.inf], [1, -math.inf], [math.inf, 1], [math.nan, 1]])
    for name in ("_softmax", "_log_softmax"):
        check(f"aten::{name}", x, 1, False)
    check("aten::_safe_softmax", x, 1)
    check("aten::_safe_softmax", x.bfloat16(), 1, torch.float32)
