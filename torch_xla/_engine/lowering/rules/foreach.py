"""Lowering rules of the _foreach operators, which apply the rule of the named operator to each element of lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import RULES, LoweringRuleContext, Operand, ScalarOperand, register
from torch_xla._engine.lowering.rules import binary, factory, shape, special, ternary, unary
from torch_xla._engine.lowering.rules.ternary import convert_bound, lerp_apply, lerp_weights

_SOURCES = (binary, factory, shape, special, ternary, unary)  # imported to register the rules that are looked up below

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip

# Overload of the _foreach operator -> rule of one element. Lists are zipped; other arguments are shared.
_OTHERS = {
    "add.List": "add.Tensor",
    "add.Scalar": "add.Scalar",
    "add.ScalarList": "add.Scalar",
    "add.Tensor": "add.Tensor",
    "addcdiv.Scalar": "addcdiv",
    "addcdiv.ScalarList": "addcdiv",
    "addcdiv.Tensor": "addcdiv",
    "addcmul.Scalar": "addcmul",
    "addcmul.ScalarList": "addcmul",
    "addcmul.Tensor": "addcmul",
    "clamp_max.List": "minimum",
    "clamp_max.Scalar": "clamp_max",
    "clamp_max.ScalarList": "clamp_max",
    "clamp_min.List": "maximum",
    "clamp_min.Scalar": "clamp_min",
    "clamp_min.ScalarList": "clamp_min",
    "clone": "clone",
    "copy": "copy",
    "div.List": "div.Tensor",
    "div.Scalar": "div.Scalar",
    "div.ScalarList": "div.Scalar",
    "div.Tensor": "div.Tensor",
    "lerp.List": "lerp.Tensor",
    "maximum.List": "maximum",
    "maximum.Scalar": "clamp_min",
    "maximum.ScalarList": "clamp_min",
    "minimum.List": "minimum",
    "minimum.Scalar": "clamp_max",
    "minimum.ScalarList": "clamp_max",
    "mul.List": "mul.Tensor",
    "mul.Scalar": "mul.Scalar",
    "mul.ScalarList": "mul.Scalar",
    "mul.Tensor": "mul.Tensor",
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "sub.List": "sub.Tensor",
    "sub.Scalar": "sub.Scalar",
    "sub.ScalarList": "sub.Scalar",
    "zero": "zero",
}

# Overloads whose last tensor has one scalar per element of the lists.
_UNPACKED = {"addcdiv.Tensor", "addcmul.Tensor"}


def _register_foreach(name: str, unpack: bool) -> Callable[..., list[jax.Array]]:
    single = RULES[f"aten::{name}"]
    conversion = convert_bound if name in ("clamp_max", "clamp_min") else convert

    def convert_scalar(number: ScalarOperand, dtype: np.dtype) -> ScalarOperand:
        return ScalarOperand(conversion(number, dtype), number.kind)

    def rule(context: LoweringRuleContext, *arguments: Any) -> list[jax.Array]:
        count, converted = len(context.out_specs), _share_scalar_conversion(convert_scalar)
        columns = [_column(a, count) for a in arguments]
        if unpack:
            columns[-1] = [arguments[-1][i] for i in range(count)]
        results = []
        for out, *row in zip(context.out_specs, *columns, strict=True):
            element = LoweringRuleContext(single.name, [out])
            row = [converted(a, opmath(element.dtype)) if isinstance(a, ScalarOperand) else a for a in row]
            results.append(single.function(*([element] if single.ctx else []), *row))
        return results

    return rule


def _column(argument: Any, count: int) -> Sequence[Any]:
    return argument if isinstance(argument, (list, tuple)) else [argument] * count


def _share_scalar_conversion(function: Callable[[Any, np.dtype], Any]) -> Callable[[Any, np.dtype], Any]:
    """Memoize ``function`` per dtype for a scalar that all elements share."""
    known: dict[tuple[int, np.dtype], Any] = {}

    def call(number: Operand, dtype: np.dtype) -> Any:
        key = (id(number.value if isinstance(number, ScalarOperand) else number), dtype)
        if key not in known:
            known[key] = function(number, dtype)
        return known[key]

    return call


def _lerp(
    context: LoweringRuleContext,
    starts: Sequence[jax.Array],
    ends: Sequence[jax.Array],
    weights: Operand | Sequence[Operand],
) -> list[jax.Array]:
    factors, results = _share_scalar_conversion(lambda weight, dtype: lerp_weights(convert(weight, dtype))), []
    for out, start, end, weight in zip(context.out_specs, starts, ends, _column(weights, len(starts)), strict=True):
        dtype = LoweringRuleContext(context.op, [out]).dtype
        compute = opmath(dtype)
        near, part = factors(weight, compute)
        results.append(convert(lerp_apply(convert(start, compute), convert(end, compute), near, part), dtype))
    return results


for _name in _UNARY:
    register(f"aten::_foreach_{_name}", _register_foreach(_name, unpack=False), ctx=True)
for _name, _single in _OTHERS.items():
    register(
        f"aten::_foreach_{_name}",
        _register_foreach(_single, _name in _UNPACKED),
        ctx=True,
        static_args=("exponent",) if _single == "pow.Tensor_Scalar" else (),
    )
for _name in ("lerp.Scalar", "lerp.ScalarList"):
    register(f"aten::_foreach_{_name}", _lerp, ctx=True)
