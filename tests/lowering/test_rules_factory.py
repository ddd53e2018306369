"""Rules of factory functions, compared with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.rules.factory  # noqa: F401
from tests.support.rule_check import batches, check

X = torch.arange(6.0).reshape(2, 3)
N = torch.arange(6).reshape(2, 3)
SCALAR = torch.tensor(2.5)
D = {"dtype": torch.bfloat16}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)

CASES: list[tuple[Any, ...]] = [
    *(("arange", n, {"dtype": d}) for n in (0, 1, 7, 4.5) for d in DTYPES),
    ("arange", 5),
    ("arange", 5.5),
    ("arange", True),
    ("arange.start", -3, 4),
    ("arange.start", 0.5, 4),
    ("arange.start", 3, 3),
    ("arange.start", 2**40, 2**40 + 3),
    ("arange.start_step", 0, 1, 0.1),
    ("arange.start_step", 0, 10, 3, {"dtype": torch.float32}),
    ("arange.start_step", 10, 0, -3),
    ("arange.start_step", 1, 3, 0.25, D),
    ("arange.start_step", 0.5, 6, 1.5, {"dtype": torch.float64}),
    ("arange.start_step", 0.5, 6, 1.5, {"dtype": torch.int64}),
    ("arange.start_step", 2**60, 2**60 + 9, 4),
    ("arange.start_step", 3, -1, -0.5, {"dtype": torch.int32}),
    ("eye", 0),
    ("eye", 3),
    ("eye.m", 2, 4, {"dtype": torch.int64}),
    ("eye.m", 4, 2, {"dtype": torch.bool}),
    ("fill.Scalar", N, 2.7),
    ("fill.Scalar", X, 3),
    ("fill.Scalar", X.bfloat16(), 0.1),
    ("fill.Scalar", X > 1, True),
    ("fill.Tensor", N, SCALAR),
    ("fill.Tensor", X, SCALAR.bfloat16()),
    ("full", [2, 0], 1.5),
    ("full", [2, 3], 1.5),
    ("full", [2, 3], 4),
    ("full", [2, 3], 4, {"dtype": torch.float32}),
    ("full", [2], True),
    ("full", [2], 1 + 2j),
    ("full", [], float("nan")),
    ("full", [2], float("-inf"), {"dtype": torch.float16}),
    ("full_like", N, 2.9),
    ("full_like", X, 3, D),
    ("new_full", N, [2, 2], 2.9),
    ("new_ones", N, [2]),
    ("new_zeros", X.bfloat16(), [0, 2]),
    ("ones", [2, 3]),
    ("ones", [2, 3], {"dtype": torch.bool}),
    ("ones_like", X, D),
    ("scalar_tensor", 1, {"dtype": torch.int32}),
    ("scalar_tensor", 2.5),
    ("tril_indices", 3, 4, -1),
    ("tril_indices", 4, 3, 1, {"dtype": torch.int32}),
    ("triu_indices", 3, 4, 2),
    ("triu_indices", 3, 0),
    ("zero", X),
    ("zeros", [2, 3]),
    ("zeros", [], {"dtype": torch.complex64}),
    ("zeros_like", N),
    *(("linspace", a, b, n, {"dtype": d}) for a, b in ((0, 10), (3.5, 0.25)) for n in (0, 1, 2, 7) for d in DTYPES[:4]),
    ("linspace", -1.7, 5, 9, {"dtype": torch.int64}),
    ("linspace", 50, 1, 50, {"dtype": torch.int64}),
    ("linspace.Tensor_Scalar", SCALAR, 7, 4),
    ("linspace.Tensor_Tensor", SCALAR, torch.tensor(9), 4),
    ("logspace", 0, 2, 5),
    ("logspace", -1.5, 2, 5, 2.0),
    ("logspace", 0, 3, 4, 10.0, {"dtype": torch.int64}),
    *(("logspace", 4.3, -3, n, 5.0, {"dtype": d}) for n in (1, 2, 4) for d in (torch.int64, torch.bfloat16)),
]


@pytest.mark.parametrize("cases", batches(CASES))
def test_same_as_cpu(cases: list[tuple[Any, ...]]) -> None:
    for name, *args in cases:
        named = args.pop() if isinstance(args[-1], dict) else {}
        check(f"aten::{name}", *args, **named)
