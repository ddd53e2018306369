"""Rules of reductions, scans, sorting and distances, compared with the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_xla._engine.lowering.rules.cumulative
import torch_xla._engine.lowering.rules.distance
import torch_xla._engine.lowering.rules.reduction
import torch_xla._engine.lowering.rules.sort  # noqa: F401
from tests.support.rule_check import batches, check

torch.manual_seed(0)
X = torch.randn(2, 3, 4)
H = X.bfloat16()
N = torch.randint(-4, 5, (2, 3, 4), dtype=torch.int32)
U = torch.randint(0, 255, (3, 4), dtype=torch.uint8)
B = N > 1
SCALAR = torch.tensor(3.0)
EMPTY = torch.zeros(0, 3)
COMPLEX = torch.randn(3, 4, dtype=torch.complex64)
INF, NAN = float("inf"), float("nan")
NANS = torch.tensor([[1, NAN, 0, NAN, 5], [2, -INF, 2, INF, 2], [NAN, NAN, NAN, NAN, NAN], [-0.0, 0, -1, 1, 0]])
DISTINCT = torch.randperm(24).reshape(2, 3, 4)
TIES = torch.randint(0, 3, (3, 9))
LONG = torch.randn(3, 600)
D = {"dtype": torch.float64}
ALL = (X, H, N, U, B, SCALAR, NANS)

SUMS: list[tuple[Any, ...]] = [
    *((name, x) for name in ("sum", "prod") for x in (*ALL, EMPTY, COMPLEX)),
    *((name, X, {"dtype": d}) for name in ("sum", "prod", "mean") for d in (torch.float64, torch.bfloat16)),
    *(("mean", x) for x in (X, H + 1, SCALAR, NANS, EMPTY, COMPLEX)),
    *(
        (name, x, dims, keep)
        for name in ("sum.dim_IntList", "mean.dim")
        for x in (X, H)
        for dims, keep in (([-1], False), ([0, 2], True), ([], False), (None, True))
    ),
    ("sum.dim_IntList", N, [1]),
    ("sum.dim_IntList", B, [1], True),
    ("sum.dim_IntList", U, [0], False, {"dtype": torch.uint8}),
    ("sum.dim_IntList", X, [0], False, {"dtype": torch.int32}),
    ("sum.dim_IntList", B, [0], False, {"dtype": torch.bool}),
    ("sum.dim_IntList", SCALAR, [0]),
    ("sum.dim_IntList", EMPTY, [0]),
    ("sum.dim_IntList", EMPTY, [1]),
    ("sum.dim_IntList", LONG.bfloat16() + 1, [1]),
    ("sum", LONG.half() + 1),
    ("mean.dim", N, [0], False, {"dtype": torch.float32}),
    ("mean.dim", EMPTY, [0], True),
    *(("hash_tensor", x) for x in (X, X.double(), H, X.half(), N, N.to(torch.int8), N.long(), U, B, SCALAR)),
    ("hash_tensor", X, [1]),
    ("hash_tensor", N, [-1], {"keepdim": True}),
    ("nansum", NANS, [1]),
    ("nansum", NANS.bfloat16(), [0], True, {"dtype": torch.float32}),
    ("nansum", NANS),
    ("nansum", N, [0]),
    ("prod.dim_int", X, -1),
    ("prod.dim_int", N, 1, True),
    ("prod.dim_int", H, 0, False, {"dtype": torch.float32}),
    ("prod.dim_int", SCALAR, -1, True),
    ("prod.dim_int", EMPTY, 0),
    ("trace", N[0]),
    ("trace", X[1]),
    *((name, x) for name in ("all", "any", "count_nonzero") for x in (*ALL, EMPTY)),
    *((f"{name}.dim", x, d, k) for name in ("all", "any") for x in (B, U) for d, k in ((0, False), (-1, True))),
    *((f"{name}.dims", B, d, k) for name in ("all", "any") for d, k in (([], True), (None, True), ([0, -1], False))),
    ("count_nonzero", X, 1),
    ("count_nonzero.dim_IntList", N, [0, -1]),
    ("count_nonzero.dim_IntList", N, []),
]

EXTREMES: list[tuple[Any, ...]] = [
    *((name, x) for name in ("amax", "amin", "max", "min", "aminmax") for x in ALL),
    *((name, x, [0, -1], k) for name in ("amax", "amin") for x in (X, N) for k in (False, True)),
    ("amax", NANS, [1], True),
    ("amax", EMPTY, [1]),
    ("aminmax", NANS, {"dim": 1}),
    ("aminmax", X, {"dim": -2, "keepdim": True}),
    *((f"{name}.dim", x, d, k) for name in ("max", "min") for x in (X, H, N, B) for d, k in ((0, False), (-1, True))),
    *((f"{name}.dim", NANS, 1) for name in ("max", "min")),
    *((f"{name}.dim", TIES, 1) for name in ("max", "min")),
    ("max.dim", SCALAR, 0, True),
    ("max.dim", EMPTY, 1),
    *((name, x) for name in ("argmax", "argmin") for x in (X, H, N, U, SCALAR, NANS, TIES)),
    *(
        (name, x, d, k)
        for name in ("argmax", "argmin")
        for x in (X, NANS)
        for d in (0, -1, None)
        for k in (False, True)
    ),
    ("argmax", SCALAR, -1, True),
    ("argmax", EMPTY, 1),
]

MOMENTS: list[tuple[Any, ...]] = [
    *(
        (f"{name}.correction", x, dims, {"correction": c, "keepdim": k})
        for name in ("var", "std", "var_mean", "std_mean")
        for x, dims in ((X, None), (H, [1]), (COMPLEX, [0, -1]), (X.double(), []))
        for c, k in ((None, False), (0, True), (0.5, False))
    ),
    ("var.correction", SCALAR),
    ("var.correction", X[0, 0], {"correction": 4}),
    ("var.correction", EMPTY, [0]),
    ("var.correction", X + 1e4, [2]),
    *(("logsumexp", x, [d], k) for x in (X, H, N, NANS) for d, k in ((0, True), (1, False))),
    ("logsumexp", torch.full((2, 2), -INF), [1]),
    ("logsumexp", EMPTY, [0]),
    ("logsumexp", X, [0, 2], True),
]

NORMS: list[tuple[Any, ...]] = [
    *(("linalg_vector_norm", x, p, [1]) for x in (X, H, COMPLEX) for p in (0, 1, 2, 3.5, -1, INF, -INF)),
    ("linalg_vector_norm", X),
    ("linalg_vector_norm", NANS, 0),
    ("linalg_vector_norm", NANS, INF, [1]),
    ("linalg_vector_norm", H, 2, [0, 2], True, {"dtype": torch.float32}),
    ("linalg_vector_norm", EMPTY, 2, [0]),
    ("norm.Scalar", X),
    ("norm.Scalar", H, 3),
    ("norm.ScalarOpt_dim", X, None, [0]),
    ("norm.ScalarOpt_dim", X, 1, [-1, 0], True),
    ("norm.ScalarOpt_dim", SCALAR, 2, [0]),
    ("norm.ScalarOpt_dim_dtype", X, 2, [0], True, D),
    ("norm.ScalarOpt_dtype", X, 2, D),
    *(("dist", X, X[0].flip(0), p) for p in (0, 1, 2, 3, INF)),
    *(("_cdist_forward", X, X.flip(0), p, None) for p in (0.0, 1.0, 2.0, 3.0, INF)),
    ("_cdist_forward", X[:1], torch.randn(2, 5, 4), 2.0, 2),
    ("_cdist_forward", torch.randn(30, 4), torch.randn(7, 4), 2.0, None),
    ("_cdist_forward", torch.zeros(2, 0), torch.zeros(3, 0), 1.0, None),
    ("_euclidean_dist", torch.randn(2, 5, 4), torch.randn(2, 3, 4)),
    *(
        ("_cdist_backward", torch.randn(2, 3, 3), X, Y, p, torch.ops.aten._cdist_forward(X, Y, p, None))
        for Y in (X.flip(0),)
        for p in (0.0, 1.0, 1.5, 2.0, 3.0, INF)
    ),
    ("_cdist_backward", torch.randn(2, 3, 3), X, X, 2.0, torch.ops.aten._cdist_forward(X, X, 2.0, 2)),
    *(
        ("_cdist_backward", torch.zeros(0, 3, 5), torch.randn(1, 3, 4), torch.randn(0, 5, 4), p, torch.zeros(0, 3, 5))
        for p in (0.0, 2.0)
    ),
    ("_cdist_backward", torch.zeros(2, 0, 5), torch.randn(1, 0, 4), torch.randn(2, 5, 4), 2.0, torch.zeros(2, 0, 5)),
    ("_cdist_backward", torch.ones(2, 3, 5), torch.randn(1, 3, 0), torch.randn(2, 5, 0), 0.0, torch.zeros(2, 3, 5)),
]

SCANS: list[tuple[Any, ...]] = [
    *((name, x, 0) for name in ("cumsum", "cumprod") for x in (*ALL, EMPTY, COMPLEX)),
    *((name, x, -1) for name in ("cummax", "cummin") for x in (*ALL, TIES, EMPTY)),
    *(("logcumsumexp", x, 1) for x in (X, H, NANS, COMPLEX)),
    ("_logcumsumexp", X, 0),
    ("logcumsumexp", torch.full((1, 3), -INF), 1),
    ("cumsum", LONG.bfloat16(), 1),
    ("cumsum", X, 1, {"dtype": torch.float64}),
    ("cumsum", X, 2, {"dtype": torch.int64}),
    ("cumprod", N, -2),
]

ORDERS: list[tuple[Any, ...]] = [
    *(
        ("sort.stable", x, {"stable": True, "dim": d, "descending": r})
        for x in ALL
        for d in (0, -1)
        for r in (False, True)
    ),
    ("sort", DISTINCT, 1, True),
    ("sort", EMPTY, 0),
    ("sort", SCALAR),
    ("sort.stable", TIES, {"stable": None, "descending": True}),
    *(
        ("topk", DISTINCT.to(t), 2, d, g)
        for t in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64)
        for d in (-1, 0)
        for g in (False, True)
    ),
    *(("histc", x, *a) for x in (X, X.double(), N.float()) for a in ((5,), (7, -1, 1), (3, 2, 2), (4, 0.5, 2.5))),
    ("histc", torch.full((4,), 2.0), 3),
    ("histc", EMPTY, 3),
    ("topk", SCALAR, 1),
    ("topk", X, 0),
    ("topk", torch.tensor([1, -NAN, 0, -INF, INF, NAN]), 4),
    ("topk", torch.tensor([1, -NAN, 0, -INF, INF, NAN]), 4, -1, False),
    ("topk", torch.tensor([-(2**63), 2**63 - 1, 0]), 2, 0, False),
    *(("kthvalue", x, 2, d, k) for x in (DISTINCT, DISTINCT.bfloat16()) for d, k in ((0, True), (-1, False))),
    ("kthvalue", SCALAR, 1),
    ("kthvalue", NANS[0], 4),
    *((name, x) for name in ("median", "nanmedian") for x in (X, N, H, SCALAR, NANS, EMPTY)),
    *(
        (f"{name}.dim", x, d, k)
        for name in ("median", "nanmedian")
        for x in (X, DISTINCT)
        for d, k in ((1, True), (-1, False))
    ),
    *((f"{name}.dim", NANS[[0, 2]], 1) for name in ("median", "nanmedian")),
    ("median.dim", SCALAR, 0, True),
    *(("mode", x, d, k) for x in (TIES, N, X) for d, k in ((0, False), (-1, True))),
    ("mode", SCALAR),
    ("mode", NANS),
]

EDGES = torch.tensor([[-1.0, 0, 0, 2.5], [0, 1, 1, 1]])
SEARCHES: list[tuple[Any, ...]] = [
    *(("searchsorted.Tensor", EDGES, torch.randn(2, 5), {"right": r, "out_int32": r}) for r in (False, True)),
    *(("searchsorted.Tensor", EDGES[0], x, {"right": r}) for x in (X, torch.tensor(0.0), EMPTY) for r in (False, True)),
    *(("searchsorted.Tensor", NANS[0].sort().values, NANS, {"right": r}) for r in (False, True)),
    ("searchsorted.Tensor", EDGES, EDGES, {"side": "right"}),
    ("searchsorted.Tensor", EDGES.flip(1), EDGES, {"sorter": torch.tensor([[3, 2, 1, 0]] * 2)}),
    ("searchsorted.Tensor", torch.zeros(0), X),
    ("searchsorted.Scalar", torch.tensor([1, 2, 3]), 2.5),
    ("searchsorted.Scalar", torch.tensor([1, 2, 3]), 2, {"right": True}),
    ("bucketize.Tensor", X, EDGES[0]),
    ("bucketize.Tensor", N, torch.arange(-3, 3, dtype=torch.int32), {"right": True, "out_int32": True}),
    ("bucketize.Scalar", 1.5, EDGES[0]),
]

CASES = SUMS + EXTREMES + MOMENTS + NORMS + SCANS + ORDERS + SEARCHES


@pytest.mark.parametrize("cases", batches(CASES))
@pytest.mark.filterwarnings("ignore")
def test_same_as_cpu(cases: list[tuple[Any, ...]]) -> None:
    for name, *args in cases:
        named = args.pop() if isinstance(args[-1], dict) else {}
        check(f"aten::{name}", *args, **named)
