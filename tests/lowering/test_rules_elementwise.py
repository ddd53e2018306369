"""Elementwise rules (unary, binary, ternary, comparison, bitwise, complex, cast), compared with the CPU."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

import torch_xla._engine.lowering.cast
import torch_xla._engine.lowering.rules.binary
import torch_xla._engine.lowering.rules.bitwise
import torch_xla._engine.lowering.rules.comparison
import torch_xla._engine.lowering.rules.complex
import torch_xla._engine.lowering.rules.foreach
import torch_xla._engine.lowering.rules.special
import torch_xla._engine.lowering.rules.ternary
import torch_xla._engine.lowering.rules.unary  # noqa: F401
from tests.support.rule_check import check, each
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.registry import LoweringRuleContext

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
U8, I8, I32, I64, BOOL, C64 = torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.complex64
INF, NAN = math.inf, math.nan


def floats(dtype: torch.dtype = F32, *shape: int, low: float = -3, high: float = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape or (3, 4), generator=generator, dtype=F64) * (high - low) + low).to(dtype)


def ints(dtype: torch.dtype = I64, *shape: int, low: int = -9, high: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape or (3, 4), generator=torch.Generator().manual_seed(seed)).to(dtype)


def complexes(dtype: torch.dtype = C64, seed: int = 0) -> torch.Tensor:
    return torch.complex(floats(F32, seed=seed), floats(F32, seed=seed + 1)).to(dtype)


def close(name: str, *args: Any, **kwargs: Any) -> None:
    """Check with tolerances for rules where torch rounds an intermediate to 16 bits, or jax computes differently."""
    dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)}
    rtol, atol = (1.6e-2, 1e-2) if BF16 in dtypes else (4e-3, 2e-3) if F16 in dtypes else (1e-5, 1e-5)
    check(name, *args, rtol=rtol, atol=atol, **kwargs)


EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-30, 1e30, INF, -INF, NAN])

# Operator -> domain on which it is finite and well conditioned.
FLOATING = {
    "acos": (-1, 1), "acosh": (1, 5), "asin": (-1, 1), "asinh": (-5, 5), "atan": (-5, 5), "atanh": (-0.9, 0.9),
    "cos": (-5, 5), "cosh": (-5, 5), "deg2rad": (-90, 90), "digamma": (0.1, 5), "erf": (-2, 2), "erfc": (-2, 2),
    "erfinv": (-0.9, 0.9), "exp": (-5, 5), "exp2": (-5, 5), "expm1": (-2, 2), "i0": (-3, 3), "lgamma": (0.1, 9),
    "log": (0.1, 9), "log10": (0.1, 9), "log1p": (-0.9, 9), "log2": (0.1, 9), "logit": (0.1, 0.9), "rad2deg": (-3, 3),
    "reciprocal": (0.5, 3), "rsqrt": (0.1, 9), "sigmoid": (-5, 5), "sin": (-5, 5), "sinc": (-3, 3), "sinh": (-3, 3),
    "special_entr": (0, 3), "special_erfcx": (-1, 3), "special_i0e": (-3, 3), "special_i1": (-3, 3),
    "special_i1e": (-3, 3), "special_log_ndtr": (-5, 3), "special_modified_bessel_i0": (-3, 3),
    "special_modified_bessel_i1": (-3, 3), "special_ndtri": (0.1, 0.9), "special_spherical_bessel_j0": (-5, 5),
    "sqrt": (0, 9), "square": (-3, 3), "tan": (-1, 1), "tanh": (-3, 3),
}  # fmt: skip
FLOAT32_AND_64_ONLY = {"special_erfcx", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
                       "special_modified_bessel_i0", "special_modified_bessel_i1", "special_ndtri",
                       "special_spherical_bessel_j0"}  # fmt: skip
COMPLEX = ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "log", "log10",
           "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "square", "tan",
           "tanh"]  # fmt: skip
EDGY = ["acos", "asinh", "atan", "cosh", "digamma", "erf", "erfinv", "exp", "expm1", "lgamma", "log", "log1p", "log2",
        "logit", "reciprocal", "rsqrt", "sigmoid", "sinc", "sinh", "special_entr", "special_i0e",
        "special_spherical_bessel_j0", "sqrt", "tanh"]  # fmt: skip


@each("name", FLOATING)
def test_floating_function(name: str) -> None:
    low, high = FLOATING[name]
    check(f"aten::{name}", floats(F32, low=low, high=high), rtol=2e-5, atol=2e-6)
    check(f"aten::{name}", floats(F64, 3, low=low, high=high))
    close(f"aten::{name}", torch.tensor([1, 2, 3]))
    if name not in FLOAT32_AND_64_ONLY:
        close(f"aten::{name}", floats(BF16, low=low, high=high))


@each("name", ["exp", "lgamma", "rsqrt", "sigmoid"])
def test_floating_function_of_odd_tensors(name: str) -> None:
    for x in (
        floats(F16, low=0.1),
        torch.tensor(0.75),
        torch.tensor(2),
        torch.tensor([True, False]),
        torch.empty(0, 2),
    ):
        close(f"aten::{name}", x)


@each("name", COMPLEX)
def test_complex_function(name: str) -> None:
    check(f"aten::{name}", complexes(), rtol=1e-4, atol=1e-5)


@each("name", EDGY)
def test_floating_function_at_the_edges(name: str) -> None:
    check(f"aten::{name}", EDGES, rtol=1e-5, atol=1e-6)


@each("name", ["abs", "ceil", "floor", "frac", "neg", "positive", "round", "sgn", "sign", "trunc"])
def test_same_dtype_function(name: str) -> None:
    for x in (floats(F64), floats(BF16), EDGES, torch.tensor(-1.5), torch.empty(0)):
        check(f"aten::{name}", x)
    if name != "frac":
        check(f"aten::{name}", ints())
        check(f"aten::{name}", ints(U8, low=0))
    if name in ("abs", "neg", "positive", "sgn"):
        check(f"aten::{name}", complexes())
    if name in ("sgn", "sign"):
        check(f"aten::{name}", torch.tensor([True, False]))


@each("name", ["isfinite", "isinf", "isnan", "isneginf", "isposinf", "logical_not", "signbit"])
def test_predicate(name: str) -> None:
    for x in (EDGES, EDGES.to(BF16), ints(), ints(U8, low=0), torch.tensor(NAN)):
        check(f"aten::{name}", x)
    if name in ("isfinite", "isinf", "isnan", "logical_not"):
        check(f"aten::{name}", torch.complex(EDGES, EDGES.flip(0)))


@each(
    ("name", "args", "kwargs"),
    [
        ("round.decimals", (floats(),), {"decimals": 2}),
        ("round.decimals", (floats(F64) * 1000,), {"decimals": -2}),
        ("round.decimals", (floats(BF16),), {"decimals": 1}),
        ("nan_to_num", (EDGES,), {}),
        ("nan_to_num", (EDGES.to(BF16), 1.5, 2.5, -2.5), {}),
        ("nan_to_num", (EDGES.double(), None, 3.0), {}),
        ("nan_to_num", (torch.complex(EDGES, EDGES.flip(0)),), {}),
        ("nan_to_num", (ints(),), {}),
        ("frexp.Tensor", (floats(),), {}),
        ("frexp.Tensor", (floats(F64, 0),), {}),
        ("frexp.Tensor", (torch.tensor([0.0, 8.0, -0.3, 1e30]),), {}),
        ("logit", (floats(F32, low=-0.2, high=1.2), 0.01), {}),
        ("logit_backward", (floats(), floats(F32, low=-0.2, high=1.2, seed=1), 0.01), {}),
        ("logit_backward", (floats(), floats(F32, low=-0.2, high=1.2, seed=1)), {}),
        ("logit_backward", (floats(BF16), floats(BF16, low=0.1, high=0.9, seed=1)), {}),
        ("polygamma", (0, floats(F32, low=0.5)), {}),
        ("polygamma", (1, floats(F32, low=0.5)), {}),
        ("polygamma", (3, floats(F64, low=0.5)), {}),
        ("polygamma", (2, ints(low=1)), {}),
        ("mvlgamma", (floats(F32, low=2, high=9), 3), {}),
        ("mvlgamma", (ints(low=3), 2), {}),
        ("angle", (EDGES,), {}),
        ("angle", (ints(),), {}),
        ("angle", (complexes(),), {}),
        ("complex", (floats(), floats(F32, 4)), {}),
        ("polar", (floats(), floats(seed=1)), {}),
        ("real", (complexes(),), {}),
        ("imag", (complexes(torch.complex128),), {}),
        ("view_as_real", (complexes(),), {}),
        ("view_as_real_copy", (complexes(),), {}),
        ("view_as_complex_copy", (floats(F64, 3, 2),), {}),
        ("conj_physical", (complexes(),), {}),
        ("_conj_physical", (floats(),), {}),
    ],
)  # fmt: skip
def test_odd_unary(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(f"aten::{name}", *args, **kwargs)


PAIRS = [
    (floats(), floats(seed=1)),
    (floats(F64), floats(F32, 4, seed=1)),
    (floats(BF16), floats(BF16, 3, 1, seed=1)),
    (floats(BF16), torch.tensor(1.7)),
    (ints(I32), floats(F16, seed=1)),
    (torch.tensor(2), floats(BF16)),
    (floats(F32, 0, 4), floats(F32, 4)),
    (torch.tensor(2.5), torch.tensor(-1.5)),
]
INT_PAIRS = [
    (ints(), ints(seed=1, low=1)),
    (ints(I32), ints(I8, 4, seed=1, low=1)),
    (ints(U8, low=0), ints(U8, 3, 1, seed=1, low=1)),
    (ints(U8, low=0), ints(I8, seed=1, low=1)),
    (ints(I8), -torch.tensor(3)),
]
BOOL_PAIR = (torch.tensor([True, False]), torch.tensor([2, -3]))
COMPLEX_PAIRS = [(complexes(), complexes(seed=3)), (complexes(), floats()), (floats(F64), complexes(seed=3))]
SPECIALS = (EDGES[:, None], EDGES[None])


@each("name", ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Tensor"])
def test_sums_and_products(name: str) -> None:
    for pair in [*PAIRS, *INT_PAIRS, *COMPLEX_PAIRS, SPECIALS]:
        close(f"aten::{name}", *pair)
    if name in ("add.Tensor", "mul.Tensor"):
        check(f"aten::{name}", torch.tensor([True, True, False]), torch.tensor([True, False, False]))
        check(f"aten::{name}", *BOOL_PAIR)
    if name == "rsub.Tensor":
        return
    for number in (0.1, 2, -1):
        check(f"aten::{name}", floats(BF16), number)
        check(f"aten::{name}", ints(), number)
    check(f"aten::{name}", ints(U8, low=0), -1)
    check(f"aten::{name}", floats(), 1 + 2j)
    check(f"aten::{name}", 0.1, floats(BF16))


@each("name", ["add", "sub", "rsub"])
def test_alpha(name: str) -> None:
    for alpha in (0.1, 2, -1):
        check(f"aten::{name}.Tensor", floats(), floats(seed=1), alpha=alpha)
        check(f"aten::{name}.Tensor", floats(BF16), floats(BF16, 4, seed=1), alpha=alpha)
        check(f"aten::{name}.Scalar", floats(), 3, alpha)
        close(f"aten::{name}.Scalar", floats(F16), 0.3, alpha)
    check(f"aten::{name}.Tensor", ints(), ints(seed=1), alpha=3)


@each("name", ["add", "copysign", "div", "fmod", "mul", "remainder", "rsub", "sub"])
def test_number_overload(name: str) -> None:
    for x in (floats(BF16), ints(), ints(I8), torch.tensor(2.0)):
        for number in (3, -2.5):
            check(f"aten::{name}.Scalar", x, number)


BINARY = ["atan2", "copysign.Tensor", "floor_divide", "fmax", "fmin", "fmod.Tensor", "hypot", "logaddexp", "logaddexp2",
          "maximum", "minimum", "remainder.Tensor", "xlogy.Tensor", "special_xlog1py"]  # fmt: skip
FLOATS_ONLY = {"hypot", "logaddexp", "logaddexp2"}


@each("name", BINARY)
def test_binary(name: str) -> None:
    for a, b in PAIRS:
        close(f"aten::{name}", a, b)
    close(f"aten::{name}", *SPECIALS)
    if name not in FLOATS_ONLY:
        for a, b in [*INT_PAIRS, BOOL_PAIR]:
            check(f"aten::{name}", a, b)


def test_division_at_the_edges() -> None:
    for mode in (None, "floor", "trunc"):
        check("aten::div.Tensor_mode", *SPECIALS, rounding_mode=mode)
    for name in ("fmod.Tensor", "remainder.Tensor", "floor_divide"):
        check(f"aten::{name}", torch.tensor([7, -7, 7, -7]), torch.tensor([3, 3, -3, -3]))
        check(f"aten::{name}", torch.tensor([7.5, -7.5, 7.5, -7.5, 0.0, -0.0]), torch.tensor([3, 3, -3, -3.0, 2, 2]))


@each("mode", [None, "floor", "trunc"])
def test_division_modes(mode: str | None) -> None:
    for pair in [*PAIRS[:4], *INT_PAIRS[:3]]:
        check("aten::div.Tensor_mode", *pair, rounding_mode=mode)
    for x in (floats(), ints(), floats(BF16)):
        check("aten::div.Scalar_mode", x, 3, rounding_mode=mode)
        check("aten::div.Tensor_mode", x, -2.5, rounding_mode=mode)


@each(
    ("name", "args"),
    [
        ("floor_divide.Scalar", (ints(), 4)),
        ("floor_divide.Scalar", (floats(), -0.7)),
        ("remainder.Scalar_Tensor", (7, ints(low=1))),
        ("remainder.Scalar_Tensor", (-7.5, floats())),
        ("gcd", (ints(), ints(seed=1))),
        ("gcd", (ints(I32), ints(I8, 4, seed=1))),
        ("lcm", (ints(), ints(seed=1))),
        ("lcm", (ints(I32), torch.tensor(6))),
        ("heaviside", (EDGES, torch.tensor(0.5))),
        ("heaviside", (ints(), ints(seed=1))),
        ("heaviside", (floats(BF16), floats(BF16))),
        ("nextafter", (EDGES[:-1], torch.tensor(2.0))),
        ("nextafter", (floats(F64), floats(F64, 4, seed=1))),
        ("nextafter", (floats(BF16), floats(BF16, seed=1))),
        ("ldexp.Tensor", (floats(), ints(I32, seed=1))),
        ("ldexp.Tensor", (ints(), ints(seed=1))),
        ("ldexp.Tensor", (floats(F16), ints(I32, 4, seed=1))),
        (
            "ldexp.Tensor",
            (torch.tensor([torch.finfo(F64).max, torch.finfo(F64).tiny], dtype=F64), torch.tensor([-0.5, 0.5])),
        ),
        ("xlogy.Scalar_Self", (0, floats(F32, low=-1))),
        ("xlogy.Scalar_Self", (2.5, floats(BF16, low=1))),
        ("xlogy.Scalar_Other", (ints(), 3)),
        ("special_xlog1py.other_scalar", (floats(), 0.3)),
        ("special_xlog1py.self_scalar", (2, floats(F32, low=0))),
        ("special_zeta", (floats(F32, low=2), floats(F32, low=1, seed=1))),
        ("special_zeta.other_scalar", (floats(F64, low=2), 2)),
        ("special_zeta.self_scalar", (2.5, floats(F32, low=1))),
        ("igamma", (floats(F32, low=0.1), floats(F32, low=0.1, seed=1))),
        ("igammac", (floats(F64, low=0.1), floats(F32, 4, low=0.1, seed=1))),
    ],
)
def test_odd_binary(name: str, args: tuple[Any, ...]) -> None:
    close(f"aten::{name}", *args)


@each("exponent", [0, 1, 2, 3, 4, 7, 0.5, -0.5, -1, -2, 1.7, -3, 2.0, 1j])
def test_power_of_a_tensor_to_a_number(exponent: complex) -> None:
    check("aten::pow.Tensor_Scalar", floats(F64, low=0.1), exponent)
    if not isinstance(exponent, complex):
        for x in (floats(BF16, low=0.1), torch.tensor(2.0), EDGES):
            close("aten::pow.Tensor_Scalar", x, exponent)
    if isinstance(exponent, float) or (isinstance(exponent, int) and exponent >= 0):
        check("aten::pow.Tensor_Scalar", ints(), exponent)
        check("aten::pow.Tensor_Scalar", ints(I8), exponent)
    check("aten::pow.Tensor_Scalar", complexes(), exponent, rtol=1e-4, atol=1e-4)


def test_power() -> None:
    check("aten::pow.Tensor_Tensor", floats(F32, low=0.1), floats(seed=1), rtol=1e-5, atol=1e-6)
    check("aten::pow.Tensor_Tensor", ints(), ints(seed=1))
    check("aten::pow.Tensor_Tensor", torch.tensor([[1], [-1], [2], [-2], [0]]), torch.tensor([-3, -2, -1, 0, 1, 5]))
    check("aten::pow.Tensor_Tensor", ints(I32), floats(F32, 4, low=1))
    check("aten::pow.Tensor_Tensor", floats(BF16, low=0.1), floats(BF16, 4, seed=1))
    check("aten::pow.Tensor_Tensor", complexes(), complexes(seed=4), rtol=1e-4, atol=1e-4)
    check("aten::pow.Tensor_Tensor", EDGES[:, None], EDGES[None], rtol=1e-5, atol=0)
    for base in (2, 0.5, 1, -1, 3):
        check("aten::pow.Scalar", base, floats())
        check("aten::pow.Scalar", base, floats(BF16))
        check("aten::pow.Scalar", base, ints(low=0))


@each("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparison(name: str) -> None:
    for pair in [*PAIRS, *INT_PAIRS, BOOL_PAIR, SPECIALS]:
        check(f"aten::{name}.Tensor", *pair)
    for x in (floats(), ints(U8, low=0), torch.tensor(0.1, dtype=BF16)):
        for number in (2, 0.1):
            check(f"aten::{name}.Scalar", x, number)
    check(f"aten::{name}.Scalar", EDGES, 0)
    check(f"aten::{name}.Tensor", torch.tensor([True, False]), torch.tensor([[True], [False]]))
    if name in ("eq", "ne"):
        check(f"aten::{name}.Tensor", complexes(), complexes())
        check(f"aten::{name}.Scalar", complexes(), 1j)


@each("name", ["logical_and", "logical_or", "logical_xor"])
def test_connective(name: str) -> None:
    check(f"aten::{name}", EDGES, torch.tensor(True))
    check(f"aten::{name}", ints(low=-1, high=2), floats(BF16, 4).trunc())
    check(f"aten::{name}", torch.tensor([True, False]), torch.tensor([[True], [False]]))


@each("name", ["and", "or", "xor"])
def test_bitwise(name: str) -> None:
    for pair in [*INT_PAIRS, BOOL_PAIR, (torch.tensor([True, False]), torch.tensor([[True], [False]]))]:
        check(f"aten::bitwise_{name}.Tensor", *pair)
    check(f"aten::bitwise_{name}.Scalar", ints(), 6)
    check(f"aten::bitwise_{name}.Scalar", ints(U8, low=0), -1)
    check(f"aten::bitwise_{name}.Scalar", torch.tensor([True, False]), True)
    check(f"aten::bitwise_{name}.Scalar_Tensor", 5, ints(I32))


def test_bitwise_not() -> None:
    for x in (ints(), ints(U8, low=0), torch.tensor([True, False])):
        check("aten::bitwise_not", x)


@each("direction", ["left", "right"])
def test_shift(direction: str) -> None:
    for dtype in (I64, I32, I8, U8):
        x, count = ints(dtype, low=0 if dtype == U8 else -9), ints(dtype, low=0, high=12, seed=1)
        check(f"aten::bitwise_{direction}_shift.Tensor", x, count)
        check(f"aten::bitwise_{direction}_shift.Tensor_Scalar", x, 2)
        check(f"aten::bitwise_{direction}_shift.Scalar_Tensor", 5, count)
        check(f"aten::__{direction[0]}shift__.Tensor", x, count)
        check(f"aten::__{direction[0]}shift__.Scalar", x, 3)


@each(
    ("name", "args"),
    [
        ("where.self", (ints(low=0, high=2).bool(), floats(), floats(seed=1))),
        ("where.self", (ints(low=0, high=2).bool(), floats(BF16), torch.tensor(2.0))),
        ("where.self", (ints(low=0, high=2).bool(), ints(I32, 4), floats(F64, 3, 1))),
        ("where.self", (torch.tensor(True), floats(), torch.tensor(0))),
        ("where.self", (torch.tensor([], dtype=BOOL), torch.tensor([]), torch.tensor(1.0))),
        ("where.self", (ints(low=0, high=2).bool(), complexes(), floats())),
        ("clamp", (floats(), -1, 0.5)),
        ("clamp", (EDGES, -0.7, 0.7)),
        ("clamp", (floats(BF16), -0.7, None)),
        ("clamp", (ints(), None, 3)),
        ("clamp", (ints(), 0.5, 3)),
        ("clamp", (floats(), 2, -2)),
        ("clamp.Tensor", (floats(), floats(F32, 4, seed=1), torch.tensor(2))),
        ("clamp.Tensor", (ints(), None, floats(seed=1))),
        ("clamp.Tensor", (EDGES, torch.tensor(NAN), None)),
        ("clamp_min", (floats(F16), 0.3)),
        ("clamp_min", (ints(), 0)),
        ("clamp_min.Tensor", (floats(), floats(F32, 4, seed=1))),
        ("clamp_max", (EDGES, 0.3)),
        ("clamp_max", (ints(I8), 2)),
        ("clamp_max.Tensor", (ints(), ints(I32, 4, seed=1))),
        ("lerp.Scalar", (floats(), floats(seed=1), 0.3)),
        ("lerp.Scalar", (floats(BF16), floats(BF16, 4, seed=1), 0.8)),
        ("lerp.Scalar", (complexes(), complexes(seed=4), 0.25)),
        ("lerp.Tensor", (floats(), floats(seed=1), floats(F32, 4, low=-1, high=2))),
        ("lerp.Tensor", (floats(F64), floats(F64, seed=1), torch.tensor(0.7, dtype=F64))),
        ("addcmul", (floats(), floats(seed=1), floats(F32, 4, seed=2))),
        ("addcmul", (ints(), ints(seed=1), ints(seed=2))),
        ("addcdiv", (floats(), floats(seed=1), floats(F32, 4, seed=2))),
        ("addcdiv", (floats(BF16), floats(BF16, seed=1), floats(BF16, low=1, seed=2))),
        ("addcdiv", (floats(F32, 0, 4), floats(F32, 4), torch.tensor(2.0))),
    ],
)
def test_ternary(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::{name}", *args)


@each("name", ["addcmul", "addcdiv"])
@each("value", [0.1, -1, 3])
def test_value(name: str, value: float) -> None:
    check(f"aten::{name}", floats(), floats(seed=1), floats(seed=2), value=value)
    check(f"aten::{name}", floats(BF16), floats(BF16, seed=1), floats(BF16, 4, low=1, seed=2), value=value)


@each("target", [F16, BF16, F32, F64, U8, I8, I32, I64, BOOL, C64])
def test_cast(target: torch.dtype) -> None:
    for x in (floats(BF16), ints(low=-300, high=300), torch.tensor([True, False]), torch.empty(0), EDGES[:8]):
        check("prims::convert_element_type", x, target)
    check("prims::convert_element_type", torch.tensor([300.7, -1.5]), target if target != U8 else I32)


def test_cast_of_complex_numbers() -> None:
    check("prims::convert_element_type", complexes(), torch.complex128)


A = [floats(), floats(BF16, 2)]
B = [floats(seed=1), floats(BF16, 2, seed=1)]
C = [floats(seed=2), floats(BF16, 1, low=1)]


@each(
    ("name", "args"),
    [
        ("abs", (A,)),
        ("sigmoid", (A,)),
        ("add.List", (A, B, 0.3)),
        ("add.Scalar", (A, 2)),
        ("add.ScalarList", (A, [0.1, 2])),
        ("add.Tensor", (A, torch.tensor(2.5), 3)),
        ("addcdiv.Scalar", (A, B, C, 0.3)),
        ("addcdiv.ScalarList", (A, B, C, [0.3, 2])),
        ("addcmul.Scalar", (A, B, C, 0.3)),
        ("addcmul.Tensor", (A, B, C, torch.tensor([0.3, 2.0]))),
        ("clamp_max.List", (A, B)),
        ("clamp_min.Scalar", (A, 0.3)),
        ("div.List", (B, A)),
        ("div.ScalarList", (A, [3, 0.3])),
        ("lerp.List", (A, B, C)),
        ("lerp.Scalar", (A, B, 0.3)),
        ("maximum.ScalarList", (A, [0.5, -1])),
        ("mul.Scalar", (A, 0.3)),
        ("mul.Tensor", (A, torch.tensor(0.3))),
        ("pow.Scalar", (A, 2)),
        ("pow.ScalarAndTensor", (1.5, A)),
        ("pow.ScalarList", (A, [2, 3])),
        ("sub.List", (A, B)),
        *([("clone", (A,))] if hasattr(torch.ops.aten, "_foreach_clone") else []),  # torch 2.11 lacks it
        ("copy", (A, [floats(F64), floats(F32, 2)])),
        ("zero", (A,)),
        ("sqrt", ([ints(low=0), floats(F64, low=0)],)),
    ],
)
def test_foreach(name: str, args: tuple[Any, ...]) -> None:
    check(f"aten::_foreach_{name}", *args, rtol=1.6e-2, atol=1e-5)


#: Operators that round at most once -> number of operands.
ONCE = {"add.Tensor": 2, "sub.Tensor": 2, "mul.Tensor": 2, "maximum": 2, "minimum": 2, "relu": 1}


@each("dtype", [BF16, F16])
def test_16_bits_as_on_accelerators(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for TPUs and GPUs returns the same values, compiled for this machine."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, **others: default(*args))
    for name, count in ONCE.items():
        close(f"aten::{name}", *(floats(dtype, seed=seed) for seed in range(count)))
        close(f"aten::{name}", *(edges.to(dtype) for edges in (EDGES, EDGES.flip(0))[:count]))
    for threshold in (0, 0.7):
        close("aten::threshold_backward", floats(dtype), floats(dtype, seed=1), threshold)
    for other in (1, 0.3, torch.tensor(0.3), torch.tensor(0.3, dtype=dtype)):
        close("aten::mul.Tensor", floats(dtype), other)
        close("aten::add.Tensor", floats(dtype), other, alpha=3)


@each("place", ["tpu", "cuda", "cpu"])
@each("name", ONCE)
def test_accelerators_keep_16_bits(place: str, name: str) -> None:
    """On accelerators 16-bit operators stay in 16 bits; otherwise XLA removes conversions and stores float32."""
    context = LoweringRuleContext(f"aten::{name}", [((8,), BF16)])
    program = jax.jit(lambda *xs: RULES[context.op].function(context, *xs))
    traced = program.trace(*[jax.ShapeDtypeStruct((8,), jnp.bfloat16)] * ONCE[name])
    text = traced.lower(lowering_platforms=(place,)).as_text()
    assert ("f32" in text) == (place == "cpu"), text
