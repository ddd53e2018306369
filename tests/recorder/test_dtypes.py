"""Every dtype of torch that a device supports: creation, transfer, casts, printing, and ops that the CPU supports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
from tests.support.helpers import assert_same, counts, run_script
from torch_xla._engine.base import dtypes

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
HALF = [torch.float16, torch.bfloat16]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
ALL = list(dtypes._NUMPY)
bits = lambda t: t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])

#: On two tensors of six small numbers. If the CPU has no kernel for a dtype, xla may return any result.
OPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "+ 2": lambda a, b: a + 2,
    "* 1.5": lambda a, b: a * 1.5,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: abs(a),
    "==": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "&": lambda a, b: a & b,
    "with float32": lambda a, b: a + torch.full((6,), 0.5, device=a.device),
    "+=": lambda a, b: a.clone().add_(b),
    "copy_ float32": lambda a, b: torch.zeros_like(a).copy_(b.to(torch.float32)),
    "sum": lambda a, b: a.sum(),
    "max": lambda a, b: a.max(),
    "argmax": lambda a, b: a.argmax(),
    "cumsum": lambda a, b: a.cumsum(0),
    "mm": lambda a, b: a.view(2, 3) @ b.view(3, 2),
    "exp": lambda a, b: a.exp(),
    "clamp": lambda a, b: a.clamp(1, 2),
    "sort": lambda a, b: a.sort()[0],
    "where": lambda a, b: torch.where(torch.tensor([True, False] * 3, device=a.device), a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "index": lambda a, b: a[torch.tensor([3, 1], device=a.device)],
    "slice": lambda a, b: a[1:5:2],
    "transpose": lambda a, b: a.view(2, 3).t().contiguous(),
    "write to a slice": lambda a, b: a.clone()[1:3].copy_(b[:2]),
    "full_like": lambda a, b: torch.full_like(a, 3),
    "zeros": lambda a, b: torch.zeros(3, dtype=a.dtype, device=a.device),
    "ones": lambda a, b: torch.ones(3, dtype=a.dtype, device=a.device),
    "arange": lambda a, b: torch.arange(4, dtype=a.dtype, device=a.device),
    "tensor": lambda a, b: torch.tensor([1, 2], dtype=a.dtype, device=a.device),
    "bits": lambda a, b: a.view(torch.uint8),
}


def _operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.tensor([0, 1, 2, 3, 0, 2]).to(dtype), torch.tensor([1, 2, 1, 3, 1, 2]).to(dtype)


@pytest.mark.parametrize("dtype", FLOAT8 + HALF + UNSIGNED, ids=str)
def test_computes_where_the_cpu_does(dtype: torch.dtype) -> None:
    a, b = _operands(dtype)
    x, y = a.to("xla"), b.to("xla")
    with counts() as moved:
        got, expected = {}, {}
        for name, op in OPS.items():
            try:
                expected[name] = op(a, b)
            except (NotImplementedError, RuntimeError):
                continue  # the CPU has no kernel
            got[name] = op(x, y)
        assert_same(got, expected, **({"rtol": 1e-2, "atol": 1e-2} if dtype in HALF else {}))
    assert len(expected) >= 15
    assert moved.fallbacks == set()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_moves_and_prints(dtype: torch.dtype) -> None:
    value = _operands(dtype)[0]
    x = value.to("xla")
    assert torch.equal(x.cpu().view(torch.uint8), value.view(torch.uint8))
    assert x[3].item() == value[3].item()
    assert repr(x + 0 if dtype == torch.float32 else x).replace(", device='xla:0'", "") == repr(value)
    assert (x.element_size(), x.dtype) == (value.element_size(), dtype)


def test_short_names() -> None:
    x = torch.tensor([1.0, 1.0009765625, 70000.0], device="xla")
    for cast in (Tensor.half, Tensor.bfloat16, Tensor.double, Tensor.float, Tensor.long, Tensor.short, Tensor.bool):
        assert_same(cast(x), cast(x.cpu()))
    layer = torch.nn.Linear(3, 2).to("xla").half()
    assert layer(x.half()[None]).dtype == torch.float16


#: All 256 patterns of the 8-bit floats, and values around every limit.
INF = float("inf")
LIMITS = torch.tensor([0.0, -0.0, INF, -INF, float("nan"), 448, 464, 465, 240, 248, 57344, 61440, 65504])
NORMAL = torch.randn(500, generator=torch.Generator().manual_seed(0))
EDGES = torch.cat([LIMITS, *(NORMAL * scale for scale in (1e-6, 1e-2, 1, 100, 1e5, 1e38))])


def casts_to_small_floats() -> list[str]:
    """Return the casts from and to 8-bit floats whose values differ from the CPU."""
    sources = [torch.float32, torch.float64, torch.float16, torch.int64, *FLOAT8]
    targets = [*FLOAT8, *HALF, torch.float32, torch.float64]
    patterns = torch.arange(256, dtype=torch.uint8)
    values = {source: patterns.view(source) if source in FLOAT8 else EDGES.to(source) for source in sources}
    on_xla = {source: value.to("xla") for source, value in values.items()}
    casts = {(source, target): on_xla[source].to(target) for source in sources for target in targets}
    torch_xla.sync()
    wrong = []
    for (source, target), cast in casts.items():
        expected, result = values[source].to(target), cast.cpu()
        nan = expected.double().isnan()
        same = torch.equal(nan, result.double().isnan()) and torch.equal(bits(result)[~nan], bits(expected)[~nan])
        wrong += [] if same else [f"{source} -> {target}"]
    return wrong


def test_casts_to_small_floats_round_as_on_the_cpu() -> None:
    """With users' flags: XLA's older emitters, which tests use (fast_compile_flags.py), round some values
    differently."""
    run_script(
        """
        import sys
        from tests.recorder.test_dtypes import casts_to_small_floats
        assert casts_to_small_floats() == []
        """,
        XLA_FLAGS="--xla_backend_optimization_level=0",
    )


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_unsigned_integers_wrap(dtype: torch.dtype) -> None:
    wide = torch.tensor([0, 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1, -1, 2**40 + 3, 2**62])
    real = torch.tensor([0.5, 3.7, -3.7, 255.9, 300.0])
    assert_same(wide.to("xla").to(dtype), wide.to(dtype))
    assert_same(real.to("xla").to(dtype), real.to(dtype))
    for target in (torch.float64, torch.int64, torch.uint8, torch.bool, *UNSIGNED):
        assert_same(wide.to(dtype).to("xla").to(target), wide.to(dtype).to(target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormals_flush_to_zero(dtype: torch.dtype) -> None:
    """Denormals flush to zero, as the guide says, and as on the CPU with torch.set_flush_denormal. Copies preserve
    them.
    """
    smallest = torch.finfo(dtype).tiny
    x = torch.tensor([smallest, smallest / 8, -smallest / 64, 0.0, 1.0], dtype=dtype)
    assert torch.equal(x.to("xla").cpu(), x)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 1.5, x / 4, x * 1e10, x - smallest * 0.75]

    assert torch.set_flush_denormal(True)
    try:
        expected = program(x)
    finally:
        torch.set_flush_denormal(False)
    torch.testing.assert_close([t.cpu() for t in program(x.to("xla"))], expected, rtol=1e-6, atol=0)
    assert not torch.equal(program(x)[2], expected[2]), "what the CPU computes differently"
