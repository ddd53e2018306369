"""Rules of indexing by tensors and masks, scatters and embeddings, compared with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.rules.embedding
import torch_xla._engine.lowering.rules.indexing
import torch_xla._engine.lowering.rules.scatter  # noqa: F401
from tests.support.rule_check import batches, check

torch.manual_seed(0)
X = torch.randn(4, 5, 6)
N = torch.arange(120).reshape(4, 5, 6) - 60
B = N % 3 == 0
ROW = torch.randn(5)
SCALAR = torch.tensor(2.5)
EMPTY = torch.zeros(0, 3)
COMPLEX = torch.randn(4, 5, dtype=torch.complex64)


def ix(*values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


TWO, NEGATIVE, ZERO_D, NONE = ix(2, 0, 3), ix(-1, -4, 1), torch.tensor(2), torch.zeros(0, dtype=torch.int64)
MASK = torch.tensor([True, False, True, True])
MASK2 = N[:, :, 0] % 4 == 0
OVER = ix([0, 2, 1], [3, 0, 3])

INDEX: list[tuple[Any, ...]] = [
    ("_unsafe_index.Tensor", X, [None, TWO]),
    ("index.Tensor", X, [TWO]),
    ("index.Tensor", N.to(torch.uint8), [None, NEGATIVE.int()]),
    ("index.Tensor", X.bfloat16(), [None, None, OVER]),
    ("index.Tensor", X, [TWO, None, NEGATIVE]),
    ("index.Tensor", X, [None, TWO, NEGATIVE]),
    ("index.Tensor", X, [OVER, ZERO_D, NEGATIVE]),
    ("index.Tensor", X, [ZERO_D, None, ZERO_D]),
    ("index.Tensor", B, [TWO.unsqueeze(1), NEGATIVE]),
    ("index.Tensor", X, [NONE]),
    ("index.Tensor", EMPTY, [None, TWO[:2]]),
    ("index_select", X, -1, TWO),
    ("index_select", N, 0, ZERO_D),
    ("index_select", SCALAR, 0, ix(0)),
    ("index_select", X, 1, NONE),
    ("take", N, NEGATIVE),
    ("take", SCALAR, ix([0])),
    ("gather", X[0], 0, ix([0, 1, 2], [3, 0, 1])),
    ("gather", X, -1, ix([[5, 1], [3, 0]], [[0, 1], [2, 2]])),
    ("gather", ROW, 0, ZERO_D),
    ("gather", SCALAR, 0, ix(0, 0)),
    ("gather", SCALAR, -1, torch.tensor(0)),
    ("gather", X, 1, torch.zeros(0, 5, 6, dtype=torch.int64)),
    ("nonzero_static", B[0], {"size": 20}),
    ("nonzero_static", B[0], {"size": 3, "fill_value": 7}),
    ("nonzero_static", torch.zeros(5, 0, 2), {"size": 3}),
    ("_unsafe_masked_index", X[0, 0], ROW[:3] > 0, [TWO], 1.5),
    ("_unsafe_masked_index_put_accumulate", X[0, 0], MASK, [ix(1, 9, 1, 5)], ROW[:4]),
]

PUT: list[tuple[Any, ...]] = [
    *(
        (name, x, [None, ix(2, 0, 3)], x[:, :3] * 2, add)
        for name in ("_index_put_impl", "_unsafe_index_put", "index_put")
        for x in (X, N, X.bfloat16())
        for add in (False, True)
    ),
    ("index_put", X, [TWO, None, NEGATIVE], torch.randn(5)),
    ("index_put", X, [TWO, NEGATIVE], torch.randn(3, 1), True),
    ("index_put", X, [ix(1, 1, 1)], torch.randn(3, 5, 6), True),
    ("index_put", B, [ix(1, 1)], B[:2], True),
    ("index_put", N, [ZERO_D], torch.tensor(7)),
    ("index_put", N, [MASK.byte()], N[1:]),
    ("index_put", X, [NONE], torch.zeros(0, 5, 6)),
    ("index_put", COMPLEX, [ix(1, 1)], COMPLEX[:2], True),
    *(
        ("index_put", x, [mask], x.new_tensor(value), add)
        for x in (X, N)
        for mask in (B, MASK, MASK2)
        for value in (3, [4])
        for add in (False, True)
    ),
    ("index_put", X, [MASK], torch.randn(3, 5, 1)),
    ("index_put", X, [MASK], torch.randn(1, 6), True),
    ("index_put", X, [MASK2], torch.randn(int(MASK2.sum()), 6)),
    ("index_put", X, [B], torch.randn(int(B.sum())), True),
    ("index_put", X, [None, torch.tensor([True, False, True, False, False])], torch.randn(2, 6)),
    ("index_put", X, [B & False], torch.zeros(0)),
    ("index_put", B, [~B], torch.tensor(True)),
    ("masked_fill.Scalar", X, B, float("-inf")),
    ("masked_fill.Scalar", X.half(), B, -1e4),
    ("masked_fill.Scalar", N, B[0], 2.9),
    ("masked_fill.Scalar", ROW, B[0].T, 0),
    ("masked_fill.Scalar", B, B, False),
    ("masked_fill.Scalar", EMPTY, torch.tensor(True), 1),
    ("masked_fill.Tensor", X.bfloat16(), B, SCALAR),
    ("masked_fill.Tensor", N, ~B, torch.tensor(3)),
    ("masked_scatter", X, B, torch.randn(120)),
    ("masked_scatter", N, MASK2[..., None], N * 2),
    ("masked_scatter", EMPTY, EMPTY > 0, torch.zeros(0)),
    ("masked_scatter_backward", X, B, [10, 6]),
    ("put", N, NEGATIVE, ix(7, 8, 9)),
    ("put", X, ix([1, 1], [0, 2]), torch.randn(2, 2), True),
]

SCATTER: list[tuple[Any, ...]] = [
    ("scatter.src", X[0], 0, OVER, torch.randn(2, 3)),
    ("scatter.src", X[0], -1, ix([0, 2, 1], [5, 0, 3]), torch.randn(3, 6)),
    ("scatter.src", N[0], 1, ix([5], [4]), N[1]),
    ("scatter.src", SCALAR, 0, torch.tensor(0), torch.tensor(1.5)),
    ("scatter.src", ROW, 0, NONE, ROW),
    ("scatter.value", X[0], 0, OVER, 1.25),
    ("scatter.value", N[0], 1, OVER, 2.75),
    ("scatter.value", B[0], 1, OVER, True),
    ("scatter.value", SCALAR, 0, ix(0), 7.5),
    *(("scatter.reduce", x, 1, OVER, x[:2, :3] + 1, {"reduce": r}) for x in (X[0], N[0]) for r in ("add", "multiply")),
    *(("scatter.value_reduce", x, 0, OVER, 3, {"reduce": r}) for x in (X[0], N[0]) for r in ("add", "multiply")),
    ("scatter_add", X[0], 1, OVER, torch.randn(2, 4)),
    ("scatter_add", N[0].int(), 0, OVER, N[1].int()),
    ("scatter_add", X[0].bfloat16(), 0, OVER, X[1].bfloat16()),
    ("scatter_add", SCALAR, 0, ix(0, 0, 0), ROW),
    ("scatter_add", COMPLEX, 0, OVER, COMPLEX),
    ("scatter_add", B[0], 0, OVER, B[1]),
    *(
        ("scatter_reduce.two", x, dim, OVER, x.flip(0)[:2, :3], r, {"include_self": s})
        for x, dim in ((X[0], 0), (N[0], -1), (X[0].bfloat16(), 1))
        for r in ("sum", "prod", "mean", "amax", "amin")
        for s in (True, False)
    ),
    ("scatter_reduce.two", ROW, 0, ix(0, 0, 1), ix(float("nan"), 1, 2, dtype=torch.float32), "amax"),
    ("index_add", X, 1, ix(0, 0, 3), X[:, :3]),
    ("index_add", X, -1, ix(1, 2), X[:, :, :2], {"alpha": 0.3}),
    ("index_add", N, 0, ix(1, 1).int(), N[:2], {"alpha": -2}),
    ("index_add", X.bfloat16(), 0, ix(3, 1), X[:2].bfloat16(), {"alpha": 0.3}),
    ("index_add", SCALAR, 0, ix(0), torch.tensor(1.5)),
    ("index_add", B, 0, ix(1, 1), B[:2]),
    ("index_copy", X, 1, TWO, X[:, 2:]),
    ("index_copy", N, 0, ZERO_D, N[1:2]),
    ("index_copy", SCALAR, 0, ix(0), torch.tensor(9.0)),
    ("index_fill.int_Scalar", X, 1, TWO, 0.5),
    ("index_fill.int_Scalar", N, -1, NEGATIVE, 7),
    ("index_fill.int_Scalar", SCALAR, 0, ix(0), 7),
    ("index_fill.int_Tensor", X, 0, ZERO_D, SCALAR),
    *(
        ("index_reduce", x, 0, ix(1, 1, 2), x.flip(0)[:3], r, {"include_self": s})
        for x in (X, N)
        for r in ("prod", "mean", "amax", "amin")
        for s in (True, False)
    ),
]

GRAD, ROWS = torch.randn(2, 3, 4), ix([0, 2, 2], [5, 2, 0])
EMBEDDING: list[tuple[Any, ...]] = [
    ("embedding", X[0], ZERO_D),
    ("embedding", X[0], ix([0, 4], [2, 2])),
    ("embedding", X[0].bfloat16(), TWO.int(), 1),
    ("embedding", X[0], NONE),
    *(("embedding_dense_backward", GRAD, ROWS, 7, p, f) for p in (-1, 2) for f in (False, True)),
    ("embedding_dense_backward", GRAD.bfloat16(), ROWS.int(), 6, -1, False),
    ("embedding_dense_backward", GRAD[:0], ROWS[:0], 6, 0, False),
    ("embedding_renorm", X[0], ix(0, 2, 2), 1.0, 2.0),
    ("embedding_renorm", X[0], ix([3], [1]), 2.0, 1.0),
]


@pytest.mark.parametrize("cases", batches(INDEX + PUT + SCATTER + EMBEDDING))
@pytest.mark.filterwarnings(
    "ignore:index_reduce", "ignore:indexing with dtype torch.uint8", "ignore:The reduce argument of torch.scatter"
)
def test_same_as_cpu(cases: list[tuple[Any, ...]]) -> None:
    for name, *args in cases:
        named = args.pop() if isinstance(args[-1], dict) else {}
        check(f"aten::{name}", *args, **named)
