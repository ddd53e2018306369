"""Lowering rules of unary elementwise functions: exponentials, trigonometry, rounding, signs, predicates."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import Function, arithmetic, float_only, register_table
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower


def _exp(x: jax.Array) -> jax.Array:
    """Compute exp; 0 for a real part of -inf and any imaginary part, whose sine XLA multiplies by 0."""
    return jnp.where(x.real == -jnp.inf, jnp.zeros_like(x), lax.exp(x)) if jnp.iscomplexobj(x) else lax.exp(x)


def _sqrt(x: jax.Array) -> jax.Array:
    """Compute sqrt; on the branch cut, on the side given by the sign of the imaginary part."""
    root = lax.sqrt(x)
    return lax.complex(root.real, jnp.copysign(root.imag, x.imag)) if jnp.iscomplexobj(x) else root


def _abs(x: jax.Array) -> jax.Array:
    """Compute abs; infinite if either part is infinite, even if the other is nan."""
    if jnp.iscomplexobj(x):
        return jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, jnp.abs(x))
    return x if x.dtype.kind == "u" else jnp.abs(x)


def _sinc(x: jax.Array) -> jax.Array:
    """Compute sin(pi x) / (pi x) as torch does: 1 at 0, and nan at infinity, where later releases of jax return 0."""
    scaled = x * math.pi
    return jnp.where(x == 0, 1, lax.sin(scaled) / jnp.where(x == 0, 1, scaled)).astype(x.dtype)


_FLOATING: dict[str, Function] = {
    "acos": lax.acos,
    "acosh": lax.acosh,
    "asin": lax.asin,
    "asinh": lax.asinh,
    "atan": lax.atan,
    "atanh": lax.atanh,
    "cos": lax.cos,
    "cosh": lax.cosh,
    "deg2rad": lambda x: x * (math.pi / 180),
    "exp": _exp,
    "exp2": lax.exp2,
    "expm1": lax.expm1,
    "log": lax.log,
    "log10": jnp.log10,
    "log1p": lax.log1p,
    "log2": jnp.log2,
    "rad2deg": lambda x: x * (180 / math.pi),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lax.rsqrt,
    "sigmoid": lax.logistic,
    "sin": lax.sin,
    "sinc": _sinc,
    "sinh": lax.sinh,
    "sqrt": _sqrt,
    "square": lax.square,
    "tan": lax.tan,
    "tanh": lax.tanh,
}

_ROUNDING: dict[str, Function] = {
    "ceil": lax.ceil,
    "fix": jnp.trunc,
    "floor": lax.floor,
    "frac": lambda x: x - jnp.trunc(x),
    "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "trunc": jnp.trunc,
}

_PREDICATES: dict[str, Function] = {
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "isneginf": jnp.isneginf,
    "isposinf": jnp.isposinf,
    "logical_not": lambda x: x == 0,
}


def _neg(x: jax.Array) -> jax.Array:
    return -x


def _sign(x: jax.Array) -> jax.Array:
    """Compute the sign: -1, 0 or 1, and 0 for nan; for a complex number, the number divided by its modulus."""
    if x.dtype == np.bool_:
        return x
    if jnp.iscomplexobj(x):
        return jnp.where(x == 0, 0, x / jnp.abs(x))
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


_SAME_DTYPE: dict[str, Function] = {
    "abs": _abs,
    "neg": _neg,
    "positive": lambda x: x,
    "sgn": _sign,
    "sign": _sign,
    "signbit": lambda x: jnp.signbit(x) if dtypes.is_inexact(x.dtype) else x < 0,
}

register_table(arithmetic, _FLOATING)
register_table(float_only, _ROUNDING)
register_table(lambda function: lambda context, x: function(x), _PREDICATES | _SAME_DTYPE)


@lower("aten::round.decimals", ctx=True)
def _round_decimals(context: LoweringRuleContext, x: jax.Array, decimals: int) -> jax.Array:
    if not dtypes.is_inexact(x.dtype):
        return x
    # torch multiplies or divides by an integer power of ten, so that the factor is exact.
    scale, wide = 10.0 ** abs(decimals), convert(x, opmath(x.dtype))
    rounded = jnp.round(wide * scale) / scale if decimals >= 0 else jnp.round(wide / scale) * scale
    return convert(rounded, x.dtype)


@lower("aten::nan_to_num")
def _nan_to_num(
    x: jax.Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> jax.Array:
    if not dtypes.is_inexact(x.dtype):
        return x
    return jnp.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf)


@lower("aten::frexp.Tensor")
def _frexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mantissa, exponent = jnp.frexp(convert(x, opmath(x.dtype)))
    return convert(mantissa, x.dtype), exponent.astype(np.int32)


@lower("aten::logit", ctx=True)
def _logit(context: LoweringRuleContext, x: jax.Array, eps: float | None = None) -> jax.Array:
    x = convert(x, opmath(context.dtype))
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return convert(lax.log(x / (1 - x)), context.dtype)


@lower("aten::logit_backward", ctx=True)
def _logit_backward(context: LoweringRuleContext, grad: jax.Array, x: jax.Array, eps: float | None = None) -> jax.Array:
    grad, x = (convert(a, opmath(context.dtype)) for a in (grad, x))
    low, outside = (0.0, math.nan) if eps is None else (eps, 0.0)
    inside = (x >= low) & (x <= 1 - low)
    return convert(jnp.where(inside, grad / (x * (1 - x)), outside), context.dtype)
