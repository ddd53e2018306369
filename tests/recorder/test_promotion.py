"""Binary operators with every pair of dtypes: values, errors and promotion match the CPU.

An operand is a tensor of one dim or of none, or a Python number. torch's meta functions, which infer output specs,
reject and promote some pairs differently from its kernels.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import torch_xla
from tests.fuzz.cross_feature import CLOSE
from tests.support.helpers import assert_same
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import compile_policy

FEW = (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool)
ALL = (*FEW, torch.float64, torch.float16, torch.complex128, torch.int32, torch.int16, torch.int8)
NUMBERS = (True, 2, 0.5, 1j, -1, 300)
FLOATS = ("'Float'", "'Double'", "'Half'", "'BFloat16'")

Call = Callable[[Any, Any], Any]


def _method(name: str) -> Call:
    return lambda a, b: getattr(a.clone(), name)(b)


def _function(name: str) -> Call:
    found: Call = getattr(torch, name)
    return found


OUT_OF_PLACE = (
    "add", "sub", "mul", "div", "remainder", "fmod", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_left_shift",
    "bitwise_right_shift", "logical_and", "eq", "lt", "ge", "maximum", "fmax", "fmin", "atan2", "hypot", "copysign",
    "nextafter", "gcd", "lcm", "logaddexp", "xlogy", "heaviside", "float_power", "rsub", "isclose", "complex", "igamma",
    "dot", "outer", "equal", "isin", "searchsorted", "bucketize", "result_type", "clamp",
)  # fmt: skip
IN_PLACE = (
    "add_", "mul_", "div_", "remainder_", "fmod_", "floor_divide_", "pow_", "bitwise_and_", "bitwise_left_shift_",
    "logical_and_", "eq_", "lt_", "atan2_", "copysign_", "gcd_", "xlogy_", "ldexp_", "float_power_", "fill_", "copy_",
    "__ilshift__", "__ifloordiv__", "__rlshift__", "__rmod__", "__rpow__", "__rsub__",
)  # fmt: skip
#: Ops whose promotion differs from torch's meta functions: compiled, so that their rules are tested, too.
COMPILED: dict[str, Call] = {
    "shift left": operator.lshift,
    "shift right": operator.rshift,
    "pow": torch.pow,
    "ldexp": torch.ldexp,
    "masked_fill": lambda a, b: a.masked_fill(torch.tensor([True, False], device=a.device), b),
}
CALLS: dict[str, Call] = {
    **COMPILED,
    **{name: _function(name) for name in OUT_OF_PLACE},
    **{name: _method(name) for name in IN_PLACE},
    "add with a number": lambda a, b: torch.add(a, b, alpha=0.5),
    "add with a bool": lambda a, b: torch.add(a, b, alpha=True),
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "where": lambda a, b: torch.where(torch.tensor([True, False], device=_device(a, b)), a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "addmm": lambda a, b: torch.addmm(a, b[None], b[None].mT),
    "clamped from above": lambda a, b: torch.clamp(a, max=b),
    "threshold": lambda a, b: torch.nn.functional.threshold(a, 1, b),
    "index_fill": lambda a, b: a.index_fill(0, torch.tensor(0, device=a.device), b),
    "squares": lambda a, b: torch.nn.functional.mse_loss(a, b),
}


def _device(a: Any, b: Any) -> torch.device:
    found: torch.device = (a if isinstance(a, Tensor) else b).device
    return found


Operand = tuple[torch.dtype, int] | bool | int | float | complex


def operands(dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[Operand, Operand]]:
    """Pairs of 1-d tensors with all others; 0-d tensors and numbers with 1-d tensors."""
    flat: list[Operand] = [(dtype, 1) for dtype in dtypes]
    others: list[Operand] = [*((dtype, 0) for dtype in dtypes), *NUMBERS]
    yield from ((a, b) for a in flat for b in flat)
    yield from ((a, b) for a in flat for b in others)
    yield from ((a, b) for a in others for b in flat)


def made(operand: Operand, device: str) -> Any:
    if not isinstance(operand, tuple):
        return operand
    dtype, dim = operand
    return torch.tensor([1, 2] if dim else 2, dtype=torch.float32).to(dtype).to(device)


def outcome(call: Call, a: Operand, b: Operand, device: str) -> tuple[Any, Exception | None]:
    try:
        return call(made(a, device), made(b, device)), None
    except Exception as error:
        return None, error


def lacks(cpu_error: Exception) -> bool:
    """Return whether the CPU has no kernel for a float dtype that XLA supports."""
    return isinstance(cpu_error, NotImplementedError) and any(dtype in str(cpu_error) for dtype in FLOATS)


def differences(call: Call, dtypes: tuple[torch.dtype, ...]) -> Iterator[str]:
    computed = []
    for a, b in operands(dtypes):
        (expected, cpu_error), (got, error) = (outcome(call, a, b, device) for device in ("cpu", "xla"))
        if "XLA has no complex numbers of two 16-bit floats" in str(error):
            continue
        if error is not None and "BComplex32" in f"{cpu_error} {error}":  # torch 2.15's, which XLA does not have either
            continue
        if type(cpu_error) is not type(error):
            if cpu_error is None or error is not None or not lacks(cpu_error):
                yield f"{a}, {b}: the CPU: {cpu_error!r} {expected}; xla: {error!r}"
        elif cpu_error is not None:
            continue
        elif not isinstance(expected, Tensor):
            if expected != got:
                yield f"{a}, {b}: {expected} on the CPU, {got} on xla"
        elif (expected.dtype, expected.shape) != (got.dtype, got.shape):
            yield f"{a}, {b}: {expected.dtype}{expected.shape} on the CPU, {got.dtype}{got.shape} on xla"
        else:
            computed.append((a, b, expected, got))
    torch_xla.sync()
    for a, b, expected, got in computed:
        if (
            expected.is_complex()
        ):  # whether the real or the imaginary part of an overflow is infinite or nan is undefined
            got, expected = (torch.where(x.isfinite(), x, torch.inf) for x in (got.cpu(), expected))
        wide = torch.complex128 if expected.is_complex() else torch.float64
        if not torch.allclose(
            got.cpu().to(wide), expected.to(wide), rtol=CLOSE.get(expected.dtype, 1e-5), equal_nan=True
        ):
            yield f"{a}, {b}: {expected} on the CPU, {got} on xla"


@pytest.fixture(autouse=True)
def _interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interpret graphs: the recorded operations are the same whether they are compiled or not."""
    if hasattr(request.node, "callspec") and request.node.callspec.params.get("name") not in COMPILED:
        monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", "eager")
    yield
    compile_policy.reset()


def check(name: str, dtypes: tuple[torch.dtype, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of conversions that drop an imaginary part
        assert not list(differences(CALLS[name], dtypes))


@pytest.mark.parametrize("name", CALLS)
def test_pairs(name: str) -> None:
    check(name, FEW)


def test_powers_of_integers_wrap_around() -> None:
    def powers(device: str) -> list[Tensor]:
        bases = torch.tensor([[2], [3], [-1], [-3], [0], [7]], device=device)
        exponents = torch.tensor([0, 1, 5, 31, 63, 64, 65, 127, 300, 2**40 + 1], device=device)
        return [bases**exponents, *(bases**k for k in (64, 65, 300)), 3**exponents, bases.to(torch.int8) ** 70]

    assert_same(powers("xla"), powers("cpu"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CALLS)
def test_all_pairs(name: str) -> None:
    check(name, ALL)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_full_of_a_complex_number(dtype: torch.dtype) -> None:
    """complex64 where the default dtype has 16 bits, as on the CPU; torch's meta function says otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        expected, got = (torch.full((2,), 1 + 2j, device=device) for device in ("cpu", "xla"))
        assert got.dtype == expected.dtype
        assert got.tolist() == expected.tolist()
        assert (torch.ones(2, device="xla") + 1).tolist() == [2, 2]  # what is recorded afterwards
    finally:
        torch.set_default_dtype(before)
