"""Matrix multiplication by groups, as in mixtures of experts: torch._grouped_mm, and in float8 with scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_xla
from tests.support.helpers import assert_same, counts, same, to

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROW_WISE = [1]  # torch.nn.functional.ScalingType.RowWise
needs_v2 = pytest.mark.skipif(not hasattr(torch, "_scaled_grouped_mm_v2"), reason="torch has no scaled_grouped_mm")
needs_dynamo = pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11's dynamo does not know the function")


class Layout(NamedTuple):
    """Shapes of both matrices and of their scales; the end of each group."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    ends: list[int] | None = None

    def tensors(self, kind_a: torch.dtype = E4M3, kind_b: torch.dtype = E4M3) -> list[Any]:
        numbers = torch.Generator().manual_seed(0)
        a, b = (torch.randn(shape, generator=numbers) for shape in (self.a, self.b))
        scales = [torch.rand(shape, generator=numbers) + 0.5 for shape in (self.rows, self.columns)]
        return [a.to(kind_a), b.to(kind_b), *scales, None if self.ends is None else _int32(self.ends)]


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


LAYOUTS = {
    "rows": Layout((16, 32), (4, 32, 48), (16,), (4, 48), [3, 3, 7, 16]),
    "columns": Layout((4, 16, 32), (32, 48), (4, 16), (48,), [3, 3, 7, 48]),
    "inner": Layout((16, 32), (32, 48), (4 * 16,), (4 * 48,), [3, 3, 7, 32]),
    "batch": Layout((4, 16, 32), (4, 32, 48), (4, 16), (4, 48)),
    "empty first and last": Layout((16, 32), (3, 32, 48), (16,), (3, 48), [0, 16, 16]),
    "all empty": Layout((0, 32), (2, 32, 48), (0,), (2, 48), [0, 0]),
    "inner all empty": Layout((16, 0), (0, 48), (2 * 16,), (2 * 48,), [0, 0]),
    "one group": Layout((5, 7), (1, 7, 3), (5,), (1, 3), [5]),
}


def _expected(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, ends: Tensor | None) -> Tensor:
    """Return the product of each group, of matrices that are converted to float32 and scaled first."""
    left, right = a.float(), b.float()
    if ends is None:
        return (left * rows[:, :, None]) @ (right * columns[:, None, :])
    groups = [slice(start, end) for start, end in zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)]
    if a.dim() == b.dim():
        of_rows, of_columns = rows.reshape(len(ends), -1, 1), columns.reshape(len(ends), 1, -1)
        return torch.stack([(left[:, s] @ right[s]) * of_rows[i] * of_columns[i] for i, s in enumerate(groups)])
    if a.dim() == 2:
        scaled = left * rows[:, None]
        return torch.cat([scaled[s] @ (right[i] * columns[i]) for i, s in enumerate(groups)])
    scaled = right * columns
    return torch.cat([(left[i] * rows[i][:, None]) @ scaled[:, s] for i, s in enumerate(groups)], dim=1)


def _v2(a: Tensor, b: Tensor, rows: Any, columns: Any, ends: Tensor | None = None, **options: Any) -> Tensor:
    recipes, swizzle = options.pop("recipes", (ROW_WISE, ROW_WISE)), options.pop("swizzle", [])
    scales = [s if isinstance(s, list) else [s] for s in (rows, columns)]
    bias, dtype = options.pop("bias", None), options.pop("out_dtype", torch.float32)
    return torch._scaled_grouped_mm_v2(
        a, b, scales[0], recipes[0], swizzle, scales[1], recipes[1], swizzle, ends, bias, dtype, **options
    )


def _v1(*operands: Any, out_dtype: torch.dtype | None = torch.float32, **options: Any) -> Tensor:
    call: Callable[..., Tensor] = torch._scaled_grouped_mm
    return call(*operands, out_dtype=out_dtype, **options)


@pytest.mark.parametrize("call", [_v1, pytest.param(_v2, marks=needs_v2)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_group_has_scales_for_rows_and_columns(layout: str, call: Callable[..., Tensor]) -> None:
    operands = LAYOUTS[layout].tensors()
    with counts() as moved:
        assert_same(call(*to("xla", operands)), _expected(*operands), rtol=1e-5, atol=1e-5)
    assert not moved.fallbacks


@pytest.mark.parametrize("call", [_v1, pytest.param(_v2, marks=[needs_v2, needs_dynamo])])
@pytest.mark.parametrize("layout", ["rows", "columns", "inner", "batch"])
def test_compiled(layout: str, call: Callable[..., Tensor]) -> None:
    """torch's meta function of version 1 requires a column-major mat_b and a result in bfloat16."""
    a, b, *rest = operands = LAYOUTS[layout].tensors()
    on_xla = [*to("xla", (a, b.mT.contiguous())), *to("xla", rest)]

    @torch.compile(backend="openxla", fullgraph=True)
    def compiled(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        return call(a, b.mT, *rest, out_dtype=torch.bfloat16)

    with counts() as moved:
        assert_same(compiled(*on_xla), _expected(*operands).bfloat16(), rtol=1e-2, atol=1e-2)
    assert not moved.fallbacks


@pytest.mark.parametrize("kinds", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
@pytest.mark.parametrize("out", [None, torch.bfloat16, torch.float16])
def test_dtypes(kinds: tuple[torch.dtype, torch.dtype], out: torch.dtype | None) -> None:
    operands = LAYOUTS["rows"].tensors(*kinds)
    found = _v1(*to("xla", operands), out_dtype=out, use_fast_accum=True)
    expected = _expected(*operands)
    assert_same(found, expected.to(torch.bfloat16 if out is None else out), rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("cold")
def test_groups_that_change_do_not_compile_again() -> None:
    """The second call ends before the last rows, whose result torch leaves undefined."""
    a, b, rows, columns, _ = LAYOUTS["rows"].tensors()
    on_xla = to("xla", (a, b, rows, columns))
    found: list[Tensor] = []
    for ends in ([3, 3, 7, 16], [0, 5, 5, 12]):
        offsets = _int32(ends).to("xla")
        torch_xla.sync()
        with counts() as moved:
            found = [_v1(*on_xla, offsets)]
            torch_xla.sync()
        assert moved.compilations == (1 if ends[-1] == 16 else 0)
    expected = _expected(a, b, rows, columns, _int32([0, 5, 5, 12]))
    torch.testing.assert_close(found[0].cpu()[:12], expected, rtol=1e-5, atol=1e-5)


#: name -> (call of the operands of the layout "rows", what the message says). Blocks have the numbers 2 to 5.
REJECTED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "scale of a tensor": (
        lambda a, b, r, c, e: _v1(a, b, r[0], c, e),
        r"aten::_scaled_grouped_mm: .* shapes \[16\] and \[4, 48\]; got mat_a Float8_e4m3fn\[16, 32\], mat_b "
        r"Float8_e4m3fn\[4, 32, 48\], scales Float\[\] and Float\[4, 48\]. Scale .*grouped_mm in bfloat16",
    ),
    "scales of blocks": (lambda a, b, r, c, e: _v1(a, b, r[:, None], c, e), r"scales Float\[16, 1\] and"),
    "one scale for a column": (lambda a, b, r, c, e: _v1(a, b, r, c[0], e), r"and Float\[48\]"),
    "scales in float64": (lambda a, b, r, c, e: _v1(a, b, r.double(), c, e), r"scales Double\[16\]"),
    "bfloat16": (lambda a, b, r, c, e: _v1(a.bfloat16(), b.bfloat16(), r, c, e), r"mat_a BFloat16\[16, 32\]"),
    "result in float8": (lambda a, b, r, c, e: _v1(a, b, r, c, e, out_dtype=E4M3), "must be BFloat16, Half or Float"),
    "no offsets": (lambda a, b, r, c, e: _v1(a, b, r, c), r"Have to provide offsets if .*32, 48\] without offsets"),
    "offsets of a batch": (lambda a, b, r, c, e: _v1(a.expand(4, -1, -1), b, r, c, e), "no offset if .* with offsets"),
    "int64 offsets": (lambda a, b, r, c, e: _v1(a, b, r, c, e.long()), r"Offsets have to be int32, got Long\[4\]"),
    "offsets of two dimensions": (lambda a, b, r, c, e: _v1(a, b, r, c, e[None]), "offs has to be 1D"),
    "inner sizes": (lambda a, b, r, c, e: _v1(a[:, :16], b, r, c, e), r"contraction dim.* Float8_e4m3fn\[16, 16"),
    "groups": (lambda a, b, r, c, e: _v1(a, b, r, c, e[:3]), r"matrix batch sizes have to match, .* for 3 groups"),
    "one dimension": (lambda a, b, r, c, e: _v1(a[0], b, r, c, e), "mat_a has to be 2 or 3d, got"),
    "bias": (lambda a, b, r, c, e: _v1(a, b, r, c, e, c), "Bias not supported yet; add it"),
    "scale of the result": (lambda a, b, r, c, e: _v1(a, b, r, c, e, None, r), "Scale result not supported yet"),
}  # fmt: skip

#: The same for the operator of torch.nn.functional.scaled_grouped_mm.
REJECTED_BY_RECIPE: dict[str, tuple[Callable[..., Tensor], str]] = {
    "tensors": (lambda *x: _v2(*x, recipes=([0], [0])), r"recipes TensorWise and TensorWise, scales Float\[16\] and"),
    "MX": (
        lambda *x: _v2(*x, recipes=([3], [3])),
        r"aten::_scaled_grouped_mm_v2: .* recipes BlockWise1x32 and BlockWise1x32, .*grouped_mm in bfloat16",
    ),
    "NVFP4": (
        lambda a, b, r, c, e: _v2(a, b, [r, r], [c, c], e, recipes=([2, 0], [2, 0])),
        r"BlockWise1x16, TensorWise and BlockWise1x16, TensorWise, scales Float\[16\], Float\[16\] and Float",
    ),
    "blocks of 128": (lambda *x: _v2(*x, recipes=([4], [5])), "BlockWise1x128 and BlockWise128x128"),
    "one recipe": (lambda *x: _v2(*x, recipes=(ROW_WISE, [0])), "recipes RowWise and TensorWise"),
    "no recipe": (lambda *x: _v2(*x, recipes=([], [])), "recipes none and none"),
    "swizzles": (lambda *x: _v2(*x, swizzle=[1]), "with swizzles"),
    "contraction": (lambda *x: _v2(*x, contraction_dim=[1, 2]), r"got the dimensions \[1, 2\] of Float8_e4m3fn\[16"),
    "one contraction": (lambda *x: _v2(*x, contraction_dim=[1]), "exactly 2 elements"),
    "bias": (lambda *x: _v2(*x, bias=x[3]), "Bias not supported yet; add it"),
}


@pytest.mark.parametrize(
    "case",
    [*REJECTED.items(), *(pytest.param(c, marks=needs_v2) for c in REJECTED_BY_RECIPE.items())],
    ids=lambda case: case[0],
)
def test_calls_that_are_not_supported_raise_where_they_are_recorded(
    case: tuple[str, tuple[Callable[..., Tensor], str]],
) -> None:
    call, message = case[1]
    operands = to("xla", LAYOUTS["rows"].tensors())
    torch_xla.sync()
    with counts() as moved, pytest.raises(ValueError, match=f"(?s){message}"):
        call(*operands)
    assert moved.executions == 0 and not moved.fallbacks


@needs_v2
def test_the_public_function() -> None:
    functional: Any = F
    kind = functional.ScalingType.RowWise
    a, b, rows, columns, ends = LAYOUTS["inner"].tensors()
    operands = to("xla", (a, b, rows, kind, columns, kind))
    found = functional.scaled_grouped_mm(*operands, offs=ends.to("xla"), contraction_dim=(-1, -2))
    assert_same(found, _expected(a, b, rows, columns, ends).bfloat16(), rtol=1e-2, atol=1e-2)


#: Errors of torch._grouped_mm on the CPU.
ERRORS: dict[str, Callable[..., Tensor]] = {
    "no offsets": lambda a, b, ends: F.grouped_mm(a, b),
    "offsets of a batch": lambda a, b, ends: F.grouped_mm(a.expand(4, -1, -1), b, offs=ends),
    "int64 offsets": lambda a, b, ends: F.grouped_mm(a, b, offs=ends.long()),
    "offsets of two dimensions": lambda a, b, ends: F.grouped_mm(a, b, offs=ends[None]),
    "groups": lambda a, b, ends: F.grouped_mm(a, b, offs=ends[:3]),
    "inner sizes": lambda a, b, ends: F.grouped_mm(a[:, :16], b, offs=ends),
    "one dimension": lambda a, b, ends: F.grouped_mm(a[0], b, offs=ends),
    "bias": lambda a, b, ends: F.grouped_mm(a, b, offs=ends, bias=b[0, 0]),
    "integers": lambda a, b, ends: F.grouped_mm(a.int(), b, offs=ends),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_the_cpu(case: str) -> None:
    a, b, _, _, ends = LAYOUTS["rows"].tensors(torch.bfloat16, torch.bfloat16)
    found = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as error:
            ERRORS[case](*to(device, (a, b, ends)))
        found.append((error.type, str(error.value)))
    assert found[1][0] is found[0][0]
    assert found[0][1].split(", got")[0] in found[1][1]


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - {"inner all empty", "one group"}))
def test_products_of_bfloat16(layout: str) -> None:
    """The CPU requires strides of 16 bytes, which the other layouts do not have."""
    a, b, _, _, ends = LAYOUTS[layout].tensors(torch.bfloat16, torch.bfloat16)
    with counts() as moved:
        same(lambda a, b, ends: F.grouped_mm(a, b, offs=ends), a, b, ends, rtol=1e-2, atol=1e-2)
    assert not moved.fallbacks


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, E4M3], ids=str)
@pytest.mark.parametrize("layout", ["rows", "columns", "inner"])
def test_a_nan_stays_in_its_group(layout: str, dtype: torch.dtype) -> None:
    """An overflow in float8 is a NaN; the products of the other groups have to stay finite."""
    a, b, rows, columns, ends = LAYOUTS[layout].tensors(torch.float32, torch.float32)
    a[-1, -1], b[-1, -1] = torch.nan, torch.inf
    rows, columns = (s if dtype == E4M3 else torch.ones_like(s) for s in (rows, columns))
    operands = a.to(dtype), b.to(dtype)
    expected = _expected(*operands, rows, columns, ends)
    assert 0 < expected.isnan().sum() < expected.numel()
    on_xla, scales, offsets = to("xla", (operands, (rows, columns), ends))
    torch_xla.sync()
    with counts() as moved:
        if dtype == E4M3:
            found = _v1(*on_xla, *scales, offsets)
        else:
            found = F.grouped_mm(*on_xla, offs=offsets, out_dtype=torch.float32)
        torch_xla.sync()
    assert moved.compilations == 1
    assert_same(found, expected, rtol=1e-5, atol=1e-5)


def test_a_wider_result_is_not_rounded() -> None:
    """The CPU has no other result dtype than that of the matrices."""
    a, b, rows, columns, ends = LAYOUTS["rows"].tensors(torch.bfloat16, torch.bfloat16)
    found = F.grouped_mm(*to("xla", (a, b)), offs=ends.to("xla"), out_dtype=torch.float32)
    expected = _expected(a, b, torch.ones_like(rows), torch.ones_like(columns), ends)
    assert_same(found, expected, rtol=1e-5, atol=1e-5)
