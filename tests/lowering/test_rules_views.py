"""Rules of views, their scatters, and operators that rearrange elements, compared with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.rules.shape
import torch_xla._engine.lowering.rules.slice_scatter
import torch_xla._engine.lowering.rules.views  # noqa: F401
from tests.support.rule_check import batches, check

X = torch.arange(24.0).reshape(2, 3, 4)
N = torch.arange(24).reshape(2, 3, 4)
ONE = torch.arange(6.0).reshape(1, 2, 1, 3)
SCALAR = torch.tensor(3.0)
EMPTY = torch.zeros(0, 3)
COMPLEX = torch.randn(2, 4, dtype=torch.complex64)
SINGLE = torch.tensor(1 + 2j)

VIEWS: list[tuple[Any, ...]] = [
    ("_conj_copy", COMPLEX),
    ("_neg_view_copy", X),
    ("_reshape_alias_copy", X, [6, 4], [4, 1]),
    ("_unsafe_view", X, [4, -1]),
    ("alias_copy", X),
    ("as_strided_copy", X, [2, 3], [1, 1], 2),
    ("as_strided_copy", X, [2, 2], [9, 4], 1),
    ("as_strided_copy", X, [3, 2, 1, 5], [4, 12, 7, 0]),
    ("as_strided_copy", X, [3, 3], [2, 8], 3),
    ("as_strided_copy", X, [], [], 5),
    ("as_strided_copy", X, [0, 3], [1, 1]),
    ("as_strided_copy", X, [4, 3, 2], [1, 4, 12]),
    ("as_strided_copy", N.bool(), [4, 3], [1, 4]),
    ("as_strided_copy", SCALAR, [2, 2], [0, 0]),
    ("detach_copy", X),
    *(("diagonal_copy", X, o, a, b) for o in (-1, 0, 2, 5) for a, b in ((0, 1), (2, 0), (-1, 1))),
    ("diagonal_copy", EMPTY),
    ("expand_copy", ONE, [5, -1, 2, 4, -1]),
    ("expand_copy", SCALAR, [2, 0]),
    ("lift_fresh_copy", X),
    ("narrow_copy", X, -1, -3, 2),
    ("narrow_copy", X, 1, 0, 3),
    ("permute_copy", X, [2, 0, -2]),
    ("permute_copy", SCALAR, []),
    ("select_copy.int", X, -1, -2),
    ("select_copy.int", N, 0, 1),
    ("slice_copy.Tensor", X),
    ("slice_copy.Tensor", X, 1, -2, None, 1),
    ("slice_copy.Tensor", X, 2, 0, 9223372036854775807, 3),
    ("slice_copy.Tensor", X, 2, 3, 1, 1),
    ("slice_copy.Tensor", X, -1, 10, 20, 2),
    ("slice_copy.Tensor", EMPTY, 0, 0, 5, 2),
    ("split_copy.Tensor", EMPTY, 0, 0),
    ("split_copy.Tensor", X, 3, -1),
    ("split_copy.Tensor", X, 7, 1),
    ("split_with_sizes_copy", X, [1, 0, 3], 2),
    ("squeeze_copy", ONE),
    ("squeeze_copy", SCALAR),
    ("squeeze_copy.dim", ONE, -2),
    ("squeeze_copy.dim", ONE, 1),
    ("squeeze_copy.dim", SCALAR, -1),
    ("squeeze_copy.dims", ONE, [0, 1, -2]),
    ("t_copy", X[0]),
    ("t_copy", X[0, 0]),
    ("transpose_copy.int", SCALAR, 0, -1),
    ("transpose_copy.int", X, 0, -1),
    ("unbind_copy.int", X, -2),
    ("unfold_copy", SCALAR, 0, 1, 1),
    ("unfold_copy", X, 1, 2, 1),
    ("unfold_copy", X, -1, 1, 2),
    ("unfold_copy", X, 2, 2, 2),
    ("unfold_copy", X, 2, 3, 5),
    ("unfold_copy", X, 1, 0, 1),
    ("unsqueeze_copy", X, -1),
    ("unsqueeze_copy", SCALAR, 0),
    ("view_as_complex_copy", X.reshape(3, 4, 2)),
    ("view_as_real_copy", COMPLEX),
    ("view_as_real_copy", SINGLE),
    ("view_copy", EMPTY, [3, 0, 2]),
    ("view_copy", X, [6, -1]),
    ("view_copy", SCALAR, [1, 1]),
    ("view_copy", X.bfloat16(), [24]),
    *(
        ("view_copy.dtype", x, dtype)
        for x in (X, N, X.bfloat16(), COMPLEX, N > 3, X.double())
        for dtype in (torch.int32, torch.float64, torch.uint8, torch.bfloat16, torch.complex64, torch.complex128)
        if x.shape[-1] * x.element_size() % dtype.itemsize == 0
    ),
    ("view_copy.dtype", EMPTY.T.contiguous().reshape(0, 4), torch.float64),
    ("view_copy.dtype", SINGLE, torch.float64),
    ("view_copy.dtype", torch.tensor([0, 1, 1], dtype=torch.uint8), torch.bool),
]

SCATTERS: list[tuple[Any, ...]] = [
    ("as_strided_scatter", X, torch.randn(3, 2), [3, 2], [4, 1], 5),
    ("as_strided_scatter", X, torch.randn(2, 3), [2, 3], [1, 2], 0),
    ("as_strided_scatter", X, torch.randn(24), [24], [1], 0),
    ("as_strided_scatter", X, torch.randn(5), [5], [1], 3),
    ("as_strided_scatter", X, torch.randn(4, 6), [4, 6], [1, 4], 0),
    *(
        ("diagonal_scatter", X, torch.randn(torch.diagonal(X, o, a, b).shape), o, a, b)
        for o in (-1, 0, 2, 5)
        for a, b in ((0, 1), (2, 0), (-1, 1))
    ),
    ("diagonal_scatter", N, torch.arange(8).reshape(4, 2), 0, 0, 1),
    ("diagonal_backward", torch.randn(4, 2), [2, 3, 4], 1, 0, 1),
    ("diagonal_backward", torch.randn(3, 2), [2, 3, 4], -2, 2, 0),
    ("diagonal_backward", torch.randn(3, 0), [2, 3, 4], 7, 0, 2),
    ("select_backward", torch.randn(2, 4), [2, 3, 4], 1, -1),
    ("select_backward", torch.randn(2, 3).bfloat16(), [2, 3, 4], -1, 2),
    ("select_scatter", N, torch.full((2, 4), 7), 1, -1),
    ("select_scatter", X, torch.randn(3, 4), 0, 1),
    ("slice_backward", torch.randn(2, 2, 4), [2, 3, 4], 1, 1, 9223372036854775807, 1),
    ("slice_backward", torch.randn(2, 3, 2), [2, 3, 4], -1, 1, 4, 2),
    ("slice_backward", torch.randn(2, 3, 2), [2, 3, 4], 2, -2, 4, 1),
    ("slice_backward", torch.randn(2, 3, 0), [2, 3, 4], 2, 4, 4, 1),
    ("slice_scatter", N > 3, N[:, :, :2] > 100, 2, 0, 3, 2),
    ("slice_scatter", X, torch.randn(2, 2, 4), 1, 1),
    ("slice_scatter", X, torch.randn(2, 3, 2), -1, 1, None, 2),
    ("slice_scatter", X, torch.randn(2, 3, 1), 2, -1, None, 1),
    ("slice_scatter", X, torch.randn(2, 3, 0), 2, 3, 3, 1),
    ("slice_scatter", X, torch.randn(2, 3, 4)),
    ("slice_scatter", X, torch.randn(2, 3, 1), 2, 3, 100, 3),
    ("unfold_backward", torch.randn(2, 2, 4, 2), [2, 3, 4], 1, 2, 1),
    ("unfold_backward", torch.randn(2, 3, 2, 2), [2, 3, 4], -1, 2, 2),
    ("unfold_backward", torch.randn(2, 3, 2, 1), [2, 3, 4], 2, 1, 2),
]

PADS: list[tuple[Any, ...]] = [
    (f"{kind}_pad{rank}d", torch.randn(shape), padding)
    for kind in ("reflection", "replication")
    for rank, shape, padding in (
        (1, (2, 3, 5), [2, 1]),
        (1, (3, 5), [-2, 3]),
        (2, (2, 4, 5), [1, 2, 3, 0]),
        (2, (2, 2, 4, 5), [0, -1, 2, -1]),
        (3, (2, 3, 4, 5), [1, 2, 3, 0, 1, 1]),
    )
]
PAD_BACKWARDS: list[tuple[Any, ...]] = [
    (f"{name}_backward", torch.randn_like(getattr(torch.ops.aten, name)(x, padding)), x, padding)
    for name, x, padding in PADS
]

SHAPES: list[tuple[Any, ...]] = [
    ("block_diag", [X[0], SCALAR, X[0, 0], EMPTY]),
    ("cat", [X, N, X.bool()], -1),
    ("cat", [X.bfloat16(), X.half()], 1),
    ("cat", [torch.zeros(0), X], 1),
    ("cat", [torch.zeros(0), torch.zeros(0)], 0),
    ("cat", [N.int(), N.to(torch.uint8)], 0),
    ("channel_shuffle", torch.randn(2, 6, 3), 3),
    ("clone", X),
    ("constant_pad_nd", N, [1, -1, 0, 2], 2.7),
    ("constant_pad_nd", X, [1, 2], -1.5),
    ("constant_pad_nd", X, []),
    ("constant_pad_nd", X.bfloat16(), [-1, -1, 1, 1, 0, 3], float("-inf")),
    ("constant_pad_nd", N > 3, [1, 1], True),
    ("copy", N, X[0, 0]),
    ("copy", X.bfloat16(), SCALAR),
    ("copy", X, N),
    ("copy", N > 3, X),
    ("copy", COMPLEX, X[0, 0]),
    ("diag_embed", X),
    ("diag_embed", X, 1, 0, -1),
    ("diag_embed", N[0], -2, 2, 0),
    ("diag_embed", EMPTY),
    ("flip", X, [0, -1]),
    ("flip", SCALAR, []),
    ("flip", SCALAR, [0]),
    ("pixel_shuffle", torch.randn(2, 8, 3, 2), 2),
    ("pixel_shuffle", torch.randn(9, 3, 2), 3),
    ("pixel_unshuffle", torch.randn(2, 3, 4, 6), 2),
    ("repeat", X, [2, 1, 3, 2]),
    ("repeat", SCALAR, [2]),
    ("repeat", SCALAR, []),
    ("repeat", X, [0, 1, 1]),
    ("roll", X, [1, -2], [0, -1]),
    ("roll", X, [5]),
    ("roll", EMPTY, [1], [0]),
    ("roll", SCALAR, [1]),
    *(("rot90", X, k, dims) for k in (-1, 0, 1, 2, 3, 6) for dims in ([0, 1], [2, 0], [-1, 1])),
    ("stack", [X, X.double()], -1),
    ("stack", [SCALAR, SCALAR]),
    *(
        (name, x, k)
        for name in ("tril", "triu")
        for x in (X, N, N > 3, COMPLEX, X.bfloat16())
        for k in (-5, -1, 0, 2, 9)
    ),
]


@pytest.mark.parametrize("cases", batches(VIEWS + SCATTERS + PADS + PAD_BACKWARDS + SHAPES))
def test_same_as_cpu(cases: list[tuple[Any, ...]]) -> None:
    for name, *args in cases:
        check(f"aten::{name}", *args)


def test_plain_view_names_have_the_same_rules() -> None:
    check("aten::view", X, [4, 6])
    check("aten::transpose.int", X, 0, 1)
