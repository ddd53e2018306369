"""torch._scaled_mm: float8 products with scales, and a layer that trains with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from tests.support.helpers import assert_same, counts, same
from torch_xla._engine.base.settings import settings

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, INNER, COLUMNS = 16, 32, 48


def _matrices(a: torch.dtype, b: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(ROWS, INNER).to(a), torch.randn(COLUMNS, INNER).to(b).t()


def _has_oracle() -> bool:
    """Whether torch's CPU kernel takes a scale for each row: torch 2.11's does not, and does not saturate either."""
    rows, columns = torch.ones(ROWS, 1), torch.ones(1, COLUMNS)
    try:
        torch._scaled_mm(*_matrices(E4M3, E4M3), rows, columns, out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


needs_oracle = pytest.mark.skipif(not _has_oracle(), reason="this torch's CPU kernel takes one scale for each matrix")


def _step(dtype: torch.dtype) -> float:
    """The largest relative distance of two neighboring numbers: results may be rounded to either."""
    return torch.finfo(dtype).eps * 1.04


@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16, None])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_one_scale_for_each_matrix(dtypes: tuple[torch.dtype, torch.dtype], out: torch.dtype | None) -> None:
    scales = torch.tensor(0.75), torch.tensor([[0.3]])

    def multiply(a: Tensor, b: Tensor, *scales: Tensor) -> Tensor:
        found = torch._scaled_mm(a, b, *scales, out_dtype=out, use_fast_accum=True)
        assert found.dtype == (a.dtype if out is None else out)
        return found.float()

    with counts() as moved:
        same(multiply, *_matrices(*dtypes), *scales, rtol=_step(dtypes[0]) if out is None else 1e-2, atol=1e-2)
    assert not moved.fallbacks


@needs_oracle
@pytest.mark.parametrize("bias", [None, torch.bfloat16, torch.float32])
def test_scales_for_rows_and_columns(bias: torch.dtype | None) -> None:
    def multiply(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, offset: Tensor) -> Tensor:
        added = None if bias is None else offset.to(bias)
        return torch._scaled_mm(a, b, rows, columns, bias=added, out_dtype=torch.float32)

    with counts() as moved:
        same(multiply, *_matrices(E4M3, E4M3), torch.rand(ROWS, 1), torch.rand(1, COLUMNS), torch.randn(COLUMNS))
    assert not moved.fallbacks


@needs_oracle
@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
def test_recipes_of_scaled_mm() -> None:
    from torch.nn.functional import ScalingType, scaled_mm

    def by_matrix(a: Tensor, b: Tensor, one: Tensor, other: Tensor) -> Tensor:
        kind = ScalingType.TensorWise
        return scaled_mm(a, b, one, kind, other, kind, output_dtype=torch.float32)

    def by_row(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, bias: Tensor) -> Tensor:
        kind = ScalingType.RowWise
        return scaled_mm(a, b, rows, kind, columns, kind, bias=bias, output_dtype=torch.bfloat16)

    with counts() as moved:
        same(by_matrix, *_matrices(E4M3, E5M2), torch.tensor(0.75), torch.tensor(0.3))
        bias = torch.randn(COLUMNS, dtype=torch.bfloat16)
        rows, columns = torch.rand(ROWS, 1), torch.rand(1, COLUMNS)
        same(by_row, *_matrices(E4M3, E4M3), rows, columns, bias, rtol=2e-2, atol=2e-2)
    assert not moved.fallbacks


@pytest.mark.parametrize(("policy", "rows"), [("compile", 16), ("eager", 32)])
@pytest.mark.parametrize("out", [None, torch.float16])
def test_results_out_of_range(out: torch.dtype | None, policy: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what a cast gives. torch's CPU kernel saturates, too, but returns NaN in float8 on CPUs with AMX."""
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", policy)
    large = torch.full((rows, 16), 400.0).to(E4M3)
    x, scale = large.to("xla"), torch.tensor(1.0).to("xla")
    with counts() as moved:
        got = torch._scaled_mm(x, x.t(), scale, scale, out_dtype=out).float()
        torch_xla.sync()
    assert moved["InterpretedGraphs"] == (policy == "eager")
    assert_same(got, (large.float() @ large.float().t()).to(out or E4M3).float())


def _takes_wide_scales() -> bool:
    """Whether torch's kernel on this CPU accepts scales in float64."""
    scale = torch.tensor(1.0, dtype=torch.float64)
    try:
        torch._scaled_mm(*_matrices(E4M3, E4M3), scale, scale)
    except (RuntimeError, ValueError):
        return False
    return True


def _messages(call: Callable[..., Any], *args: Tensor) -> list[tuple[type, str]]:
    found = []
    for device in ("cpu", "xla"):
        with pytest.raises(Exception) as error:  # noqa: PT011  the type is compared
            call(*(t.to(device) for t in args))
        found.append((error.type, str(error.value).split("\n")[0]))
    return found


@pytest.mark.parametrize(
    "case",
    {
        "a vector of scales": lambda a, b, s: torch._scaled_mm(a, b, s.expand(ROWS).contiguous(), s),
        "scales of the other matrix": lambda a, b, s: torch._scaled_mm(a, b, torch.ones_like(b[:1].float()), s),
        "scales in float64": lambda a, b, s: torch._scaled_mm(a, b, s.double(), s.double()),
        "float32": lambda a, b, s: torch._scaled_mm(a.float(), b, s, s),
        "inner sizes": lambda a, b, s: torch._scaled_mm(a[:, :16].contiguous(), b, s, s),
        "three dimensions": lambda a, b, s: torch._scaled_mm(a[None], b, s, s),
        "bias": lambda a, b, s: torch._scaled_mm(a, b, s, s, bias=torch.ones(5, device=a.device)),
    }.items(),
    ids=lambda case: case[0],
)
def test_errors_of_the_cpu(case: tuple[str, Callable[..., Any]]) -> None:
    if case[0] == "scales in float64" and _takes_wide_scales():
        pytest.skip("the kernel of torch 2.11, and that of CPUs with AMX, accepts scales of float64")
    there, here = _messages(case[1], *_matrices(E4M3, E4M3), torch.tensor(1.0))
    assert here[0] is there[0]
    assert there[1] in here[1]


def _scaled_mm_v2(a: Tensor, b: Tensor, kinds: tuple[int, int], scales: list[Tensor], **options: Any) -> Tensor:
    """The operator of torch.nn.functional.scaled_mm; the first half of the scales is that of the first matrix."""
    half, swizzle = len(scales) // 2, [int(options.pop("swizzled", False))]
    first, second = scales[:half], scales[half:]
    dtype = options.pop("dtype", torch.float32)
    recipes = [kinds[:1] * half, kinds[1:] * half]
    bias, dims = options.pop("bias", None), options.pop("dims", ())
    return torch._scaled_mm_v2(a, b, first, recipes[0], swizzle, second, recipes[1], swizzle, bias, dtype, dims)


#: name -> (call of two matrices and a scale, what the message says). Blocks have the numbers 2 to 5.
RECIPES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "blocks": (
        lambda a, b, s: _scaled_mm_v2(a, b, (4, 5), [s.expand(len(a), 1), s.expand(1, 1)]),
        r"recipes BlockWise1x128 and BlockWise128x128, scales Float\[\d+, 1\] and Float\[1, 1\]",
    ),
    "swizzles": (lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s, s], swizzled=True), "with swizzles"),
    "two levels": (
        lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s, s, s, s]),
        r"recipes TensorWise, TensorWise and TensorWise, TensorWise, scales Float\[\], Float\[\] and Float",
    ),
    "mixed": (lambda a, b, s: _scaled_mm_v2(a, b, (1, 0), [s.expand(len(a), 1), s]), "RowWise and TensorWise"),
    "rows": (lambda a, b, s: _scaled_mm_v2(a, b, (1, 1), [s.expand(5, 1), s.expand(1, b.shape[1])]), r"Float\[5, 1\]"),
    "scales in float16": (lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s.half(), s]), r"scales Half\[\] and Float\[\]"),
    "float32": (lambda a, b, s: _scaled_mm_v2(a.float(), b.float(), (0, 0), [s, s]), r"mat_a Float\[\d+, \d+\]"),
    "inner sizes": (lambda a, b, s: _scaled_mm_v2(a[:, :16], b, (0, 0), [s, s]), "shapes cannot be multiplied"),
    "dimensions": (lambda a, b, s: _scaled_mm_v2(a[0], b, (0, 0), [s, s]), r"mat_a must be a matrix, got Float8"),
    "contraction": (lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s, s], dims=[0, 0, 1]), "exactly 2 elements"),
    "bias": (lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s, s], bias=s.expand(5)), "must be size 48 but got 5"),
    "bias in float64": (
        lambda a, b, s: _scaled_mm_v2(a, b, (0, 0), [s, s], bias=s.double().expand(48)), "but got Double"
    ),
}  # fmt: skip


@needs_oracle
@pytest.mark.skipif(not hasattr(torch, "_scaled_mm_v2"), reason="torch has no scaled_mm")
@pytest.mark.parametrize("rows", [ROWS, 1 << 16], ids=["small", "large"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_that_are_not_supported_raise_where_they_are_recorded(recipe: str, rows: int) -> None:
    """The CPU rejects them, too. The large matrices are too large for recording to call the CPU's kernel."""
    call, message = RECIPES[recipe]
    a, b = torch.ones(rows, INNER).to(E4M3), _matrices(E4M3, E4M3)[1]
    if rows == ROWS:
        assert {kind for kind, _ in _messages(call, a, b, torch.tensor(1.0))} == {ValueError}
    with counts() as moved, pytest.raises(ValueError, match=message):
        call(a.to("xla"), b.to("xla"), torch.tensor(1.0, device="xla"))
    assert moved.executions == 0


@pytest.mark.skipif(not hasattr(torch, "_scaled_mm_v2"), reason="torch has no scaled_mm")
def test_large_matrices_in_any_layout() -> None:
    """torch's meta function wants the second matrix in columns; xla's results do not depend on strides."""
    rows, inner = 1 << 16, INNER
    a, b = torch.ones(rows, inner).to(E4M3), torch.ones(inner, COLUMNS).to(E4M3)
    with counts() as moved:
        one = torch.tensor(0.5, device="xla")
        found = _scaled_mm_v2(a.to("xla"), b.to("xla"), (0, 0), [one, one])
        assert found.dtype == torch.float32 and found.sum().item() == rows * COLUMNS * inner / 4
        with pytest.raises(
            ValueError, match=r"aten::_scaled_mm: .*mat_a Float8_e4m3fn\[65536, 32\], .* scales Float\[3\]"
        ):
            torch._scaled_mm(a.to("xla"), b.to("xla"), torch.ones(3, device="xla"), one)
    assert not moved.fallbacks


class _Float8Product(torch.autograd.Function):
    """``x @ weight.t()``: each operand is scaled to the range of its float8 dtype; gradients are in float8_e5m2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight.t(), E4M3, E4M3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _multiply(grad, weight, E5M2, E4M3), _multiply(grad.t(), x, E5M2, E4M3)


def _to_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    limit = torch.finfo(dtype).max
    scale = limit / x.abs().max().clamp(min=1e-12).float()
    return (x * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


def _multiply(a: Tensor, b: Tensor, dtype_a: torch.dtype, dtype_b: torch.dtype) -> Tensor:
    (left, scale_a), (right, scale_b) = _to_float8(a.contiguous(), dtype_a), _to_float8(b.t().contiguous(), dtype_b)
    return torch._scaled_mm(left, right.t(), scale_a, scale_b, out_dtype=torch.float32)


class _Float8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Float8Product.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return product + self.bias


def _train(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(_Float8Linear(INNER, COLUMNS), nn.GELU(), _Float8Linear(COLUMNS, 16)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, target = torch.randn(64, INNER).to(device), torch.randn(64, 16).to(device)
    losses = []
    for _ in range(4):
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.detach())
    return [torch.stack(losses).cpu(), *(p.detach().cpu() for p in model.parameters())]


@pytest.mark.usefixtures("cold")
def test_a_layer_trains_in_float8() -> None:
    """Both products of backward are float8, too; a value near a boundary of float8 may be rounded the other way."""
    expected = _train("cpu")
    with counts() as moved:
        found = _train("xla")
    assert not moved.fallbacks
    assert expected[0][-1] < expected[0][0]
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-3)
