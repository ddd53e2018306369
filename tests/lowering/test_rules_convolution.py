"""Rules of convolutions and their gradients, compared with the CPU."""

from __future__ import annotations

import pytest
import torch
from jax import lax

import torch_xla._engine.lowering.rules.convolution  # noqa: F401
from tests.support.rule_check import check, each

# input, weight, stride, padding, dilation, transposed, output_padding, groups
CASES = {
    "1d": ((2, 3, 12), (4, 3, 3), [1], [0], [1], False, [0], 1),
    "1d-strided": ((2, 3, 12), (4, 3, 3), [2], [2], [2], False, [0], 1),
    "1d-transposed": ((2, 4, 7), (4, 3, 3), [2], [1], [1], True, [1], 1),
    "2d": ((2, 3, 9, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "2d-1x1": ((2, 3, 5, 5), (4, 3, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "2d-one-value-for-all": ((2, 3, 9, 8), (4, 3, 3, 3), [2], [1], [1], False, [0], 1),
    "2d-strided-remainder": ((2, 3, 10, 11), (4, 3, 3, 2), [3, 2], [1, 0], [1, 2], False, [0, 0], 1),
    "2d-grouped": ((2, 6, 10, 11), (4, 3, 3, 2), [3, 2], [1, 0], [1, 2], False, [0, 0], 2),
    "2d-grouped-wide": ((3, 6, 7, 6), (9, 2, 3, 3), [1, 1], [2, 1], [1, 1], False, [0, 0], 3),
    "2d-depthwise": ((2, 4, 8, 8), (8, 1, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 4),
    "2d-batch-1": ((1, 4, 8, 8), (6, 2, 3, 3), [1, 1], [1, 1], [2, 2], False, [0, 0], 2),
    "2d-transposed": ((2, 4, 5, 6), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 0], 1),
    "2d-transposed-grouped": ((2, 4, 5, 6), (4, 3, 3, 2), [2, 1], [0, 1], [1, 1], True, [1, 0], 2),
    "2d-transposed-wide-padding": ((2, 2, 6, 6), (2, 3, 2, 2), [1, 1], [3, 2], [1, 1], True, [0, 0], 1),
    "2d-transposed-dilated-output-padding": ((1, 2, 4, 4), (2, 3, 3, 3), [1, 1], [0, 0], [2, 2], True, [1, 1], 1),
    "3d": ((2, 2, 5, 6, 7), (3, 2, 2, 3, 3), [1, 2, 1], [1, 0, 1], [1, 1, 2], False, [0, 0, 0], 1),
    "3d-grouped": ((2, 4, 5, 6, 7), (6, 2, 2, 3, 3), [1, 2, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 2),
    "3d-transposed": ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), [2, 1, 2], [0, 1, 0], [1, 1, 1], True, [1, 0, 0], 1),
    "empty-batch": ((0, 3, 8, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
}
LOOSE = {torch.float32: (1e-4, 1e-4), torch.float64: (None, None), torch.bfloat16: (2e-2, 1e-1)}


def operands(case: str, dtype: torch.dtype) -> tuple:
    x, weight, *geometry = CASES[case]
    torch.manual_seed(len(case))
    x, weight = torch.randn(x, dtype=dtype), torch.randn(weight, dtype=dtype)
    features = weight.shape[1] * geometry[-1] if geometry[3] else weight.shape[0]
    return x, weight, torch.randn(features, dtype=dtype), geometry


@each("case", CASES)
@each("dtype", [torch.float32, torch.bfloat16])
def test_forward(case: str, dtype: torch.dtype) -> None:
    x, weight, bias, geometry = operands(case, dtype)
    rtol, atol = LOOSE[dtype]
    check("aten::convolution", x, weight, bias, *geometry, rtol=rtol, atol=atol)
    if dtype == torch.float32:
        check("aten::convolution", x, weight, None, *geometry, rtol=rtol, atol=atol)


@each("case", CASES)
@each("dtype", [torch.float32, torch.float64])
def test_backward(case: str, dtype: torch.dtype) -> None:
    x, weight, bias, geometry = operands(case, dtype)
    grad = torch.randn_like(torch.ops.aten.convolution(x, weight, bias, *geometry))
    rtol, atol = LOOSE[dtype]
    args = grad, x, weight, [bias.shape[0]], *geometry
    check("aten::convolution_backward", *args, [True, True, True], rtol=rtol, atol=atol)


@each("case", [case for case, (*_, transposed, _, groups) in CASES.items() if not transposed and groups == 1])
@each("dtype", [torch.float32, torch.float64])
def test_backward_as_on_a_tpu(case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for TPUs returns the same values, compiled for this machine."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, **others: others.get("tpu", default)(*args))
    x, weight, bias, geometry = operands(case, dtype)
    grad = torch.randn_like(torch.ops.aten.convolution(x, weight, bias, *geometry))
    rtol, atol = LOOSE[dtype]
    args = grad, x, weight, [bias.shape[0]], *geometry
    check("aten::convolution_backward", *args, [True, True, True], rtol=rtol, atol=atol)


@each("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_backward_mask_and_bfloat16(mask: list[bool]) -> None:
    x, weight, bias, geometry = operands("2d-grouped", torch.bfloat16)
    grad = torch.randn_like(torch.ops.aten.convolution(x, weight, bias, *geometry))
    check("aten::convolution_backward", grad, x, weight, [4], *geometry, mask, rtol=2e-2, atol=1e-1)


def test_with_backend_flags() -> None:
    x, weight, bias, geometry = operands("2d", torch.float32)
    check("aten::_convolution", x, weight, bias, *geometry, False, False, False, False, rtol=1e-4, atol=1e-4)
