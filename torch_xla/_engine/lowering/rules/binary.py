"""Lowering rules of binary arithmetic: add, mul, div, remainder, pow, minimum, maximum and similar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import (
    Function,
    add,
    arithmetic,
    discontinuous,
    divide,
    multiply,
    register_table,
    round_once,
    subtract,
    widen,
)
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower


def _with_alpha(function: Function) -> Callable[..., jax.Array]:
    """Return the rule of add and sub: ``function(a, alpha * b)``."""
    plain, scaled = round_once(function), arithmetic(lambda a, b, alpha: function(a, multiply(alpha, b)))

    def rule(context: LoweringRuleContext, a: Operand, b: Operand, alpha: Operand = 1) -> jax.Array:
        return plain(context, a, b) if alpha == 1 else scaled(context, a, b, alpha)

    return rule


def _rsub(a: jax.Array, b: jax.Array, alpha: jax.Array) -> jax.Array:
    return b - alpha * a


def _heaviside(x: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(x == 0, values, (x > 0).astype(values.dtype))


def _remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute the remainder with the sign of the divisor."""
    rest = jnp.fmod(a, b)
    return jnp.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _floor_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute Python's ``//``: for floats the quotient that matches the exact remainder, not floor(a / b)."""
    if not dtypes.is_inexact(a.dtype):
        return jnp.floor_divide(a, b)
    rest = jnp.fmod(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(quotient - floor > 0.5, floor + 1, floor)
    nearest = jnp.where(quotient == 0, jnp.copysign(0, a / b), floor)
    return jnp.where(b == 0, a / b, nearest)


def _trunc_divide(context: LoweringRuleContext, a: Operand, b: Operand) -> jax.Array:
    a, b = jnp.broadcast_arrays(widen(a, context.dtype), widen(b, context.dtype))
    if not dtypes.is_inexact(a.dtype):
        return convert(lax.div(a, b), context.dtype)
    # torch rounds the quotient to 16 bits before it truncates. XLA may drop a pair of conversions.
    bits: Any = jnp.finfo(context.dtype)  # type: ignore[no-untyped-call]
    return convert(jnp.trunc(lax.reduce_precision(a / b, bits.nexp, bits.nmant)), context.dtype)


def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute log(exp(a) + exp(b)); for complex numbers on torch's branch, that of the larger real part."""
    if not jnp.iscomplexobj(a):
        return jnp.logaddexp(a, b)
    a, b = jnp.broadcast_arrays(a, b)
    large, small = jnp.where(a.real >= b.real, a, b), jnp.where(a.real >= b.real, b, a)
    plain = jnp.where(jnp.isinf(large.real), jnp.logaddexp(a, b), large + jnp.log1p(jnp.exp(small - large)))
    # jnp.where would convert a Python number to complex128, on which libtpu (of jax 0.10.2) aborts the process.
    nan = jnp.asarray(complex(np.nan, np.nan), a.dtype)
    return jnp.where(jnp.isnan(a) | jnp.isnan(b), nan, plain).astype(a.dtype)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """Compute 2 to an integer power in [-1022, 1023], exactly."""
    return lax.bitcast_convert_type((exponent.astype(np.int64) + 1023) << 52, np.float64)


def _ldexp(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute ``x * 2 ** exponent``, also if the power alone overflows or underflows the dtype."""
    if jnp.iscomplexobj(x):
        return x * jnp.exp2(exponent)
    # Truncation towards 0 keeps the factor of the fraction in the range of the dtype if the result is in range.
    wide, integral = x.astype(np.float64), jnp.trunc(exponent)
    wide = wide * jnp.where(integral == exponent, 1.0, lax.exp2((exponent - integral).astype(np.float64)))
    # An exponent of 3000 takes any number from one end of the range to the other; in float64 that takes three factors.
    left = jnp.clip(jnp.nan_to_num(integral, nan=0.0), -3000, 3000).astype(np.int64)
    for _ in range(3 if x.dtype == np.float64 else 1):
        part = jnp.clip(left, -1022, 1023)
        wide, left = wide * _power_of_two(part), left - part
    return wide.astype(x.dtype)


def _gcd(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute the gcd by Euclid's algorithm, in torch's order of operations.

    The order determines the sign of results with the smallest integer of a type, whose absolute value is itself.
    ``jnp.gcd`` does not terminate for it; here each remainder is closer to 0 than the last.
    """
    a, b = jnp.broadcast_arrays(jnp.abs(a), jnp.abs(b))

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = state
        rest = lax.rem(b, jnp.where(a == 0, 1, a))
        return jnp.where(a == 0, 0, rest), jnp.where(a == 0, b, a)

    return lax.while_loop(lambda state: jnp.any(state[0] != 0), step, (a, b))[1]


def _lcm(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute abs(a / gcd * b); like torch, in 32 bits for narrower integers, then wrapped around."""
    dtype, wide = a.dtype, np.promote_types(a.dtype, np.int32)
    a, b = jnp.broadcast_arrays(a, b)
    divisor = _gcd(a, b).astype(wide)
    quotient = lax.div(a.astype(wide), jnp.where(divisor == 0, 1, divisor))
    return jnp.abs(jnp.where(divisor == 0, 0, quotient * b.astype(wide))).astype(dtype)


def _fmax(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute fmax; of two zeros return the first, as C does. ``jnp.fmax`` returns the second."""
    return jnp.where((a >= b) | (b != b), a, b)


def _fmin(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where((a <= b) | (b != b), a, b)


_CONTINUOUS: dict[str, Function] = {
    "atan2": jnp.arctan2,
    "fmax": _fmax,
    "fmin": _fmin,
    "gcd": _gcd,
    "hypot": jnp.hypot,
    "lcm": _lcm,
    "logaddexp": logaddexp,
    "logaddexp2": jnp.logaddexp2,
}

register_table(arithmetic, _CONTINUOUS)
register_table(round_once, {"maximum": jnp.maximum, "minimum": jnp.minimum})
register_table(arithmetic, {"copysign": jnp.copysign, "div": divide}, "Scalar", "Tensor")
register_table(round_once, {"mul": multiply}, "Scalar", "Tensor")
register_table(_with_alpha, {"add": add, "sub": subtract}, "Scalar", "Tensor")
register_table(arithmetic, {"rsub": _rsub}, "Scalar", "Tensor")
register_table(arithmetic, {"ldexp": _ldexp}, "Tensor")
register_table(discontinuous, {"fmod": jnp.fmod}, "Scalar", "Tensor")
register_table(discontinuous, {"remainder": _remainder}, "Scalar", "Scalar_Tensor", "Tensor")
register_table(discontinuous, {"floor_divide": _floor_divide}, "", "Scalar")
register_table(discontinuous, {"heaviside": _heaviside})

_DIVISIONS = {
    None: arithmetic(divide),
    "floor": discontinuous(_floor_divide),
    "trunc": _trunc_divide,
}


@lower("aten::div.Scalar_mode", "aten::div.Tensor_mode", ctx=True)
def _div_mode(context: LoweringRuleContext, a: Operand, b: Operand, rounding_mode: str | None) -> jax.Array:
    return _DIVISIONS[rounding_mode](context, a, b)


@lower("aten::nextafter")
def _nextafter(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.nextafter(a, b)


# The exponents for which torch does not call pow().
_POWERS: dict[Operand, Function] = {
    0: jnp.ones_like,
    1: lambda x: x,
    2: lax.square,
    3: lambda x: x * x * x,
    0.5: lax.sqrt,
    -0.5: lax.rsqrt,
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


@lower("aten::pow.Tensor_Scalar", ctx=True, static_args=("exponent",))
def _pow_number(context: LoweringRuleContext, x: jax.Array, exponent: bool | int | float | complex) -> jax.Array:
    x = convert(x, opmath(context.dtype))
    short = _POWERS.get(exponent)
    if (
        short is None
        and isinstance(exponent, int)
        and exponent > 0
        and not (dtypes.is_inexact(x.dtype) or x.dtype == bool)
    ):
        return lax.integer_pow(x, exponent)
    return convert(short(x) if short else _pow(x, convert(exponent, x.dtype)), context.dtype)


def _whole_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute an integer power by squaring, for all bits of the largest exponent; jnp.power uses only six bits."""

    def with_next_bit(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        power, square, left = state
        return jnp.where(left & 1, power * square, power), square * square, left >> 1

    state = (jnp.ones_like(base), base, exponent)
    return lax.while_loop(lambda state: jnp.any(state[2] > 0), with_next_bit, state)[0]


def _pow(base: jax.Array, exponent: jax.Array) -> jax.Array:
    if dtypes.is_inexact(base.dtype):
        return jnp.power(base, exponent)
    if base.dtype == np.bool_:
        return base | ~exponent
    # Only the integers 1 and -1 have integer reciprocals; torch returns 0 for the others.
    power = _whole_power(*jnp.broadcast_arrays(base, jnp.maximum(exponent, 0)))
    reciprocal = jnp.where(base == 1, 1, jnp.where(base == -1, 1 - 2 * (exponent & 1), 0)).astype(base.dtype)
    return jnp.where(exponent < 0, reciprocal, power)


register_table(arithmetic, {"pow": _pow}, "Scalar", "Tensor_Tensor")
