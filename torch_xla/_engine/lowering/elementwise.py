"""What the files of elementwise operators share: rule families made of a jax function, and tables of them.

A family converts the operands to one dtype, calls the function and rounds once: 16-bit floats are computed in float32
(``rounded_once`` has an exception).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import LoweringRuleContext, Number, Operand, register, result_type

Function = Callable[..., jax.Array]


def broadcast_scalar(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``x``, or an array of that shape which is the number ``x`` everywhere."""
    return x if x.shape == shape else lax.broadcast(x, shape)


def _primitive_if_same_shape(primitive: Function, function: Function, has: Callable[[np.dtype], bool]) -> Function:
    """``function`` of jax.numpy, of two arrays of one dtype; by its primitive where that is all it comes to.

    jax traces each call of jax.numpy as a function of its own: half the time of tracing an optimizer's step.
    """

    def call(a: jax.Array, b: jax.Array) -> jax.Array:
        if not has(a.dtype) or not (a.shape == b.shape or a.shape == () or b.shape == ()):
            return function(a, b)
        shape = a.shape or b.shape
        return primitive(broadcast_scalar(a, shape), broadcast_scalar(b, shape))

    return call


def _is_number(dtype: np.dtype) -> bool:
    return dtype != np.bool_


add = _primitive_if_same_shape(lax.add, jnp.add, _is_number)
subtract = _primitive_if_same_shape(lax.sub, jnp.subtract, _is_number)
multiply = _primitive_if_same_shape(lax.mul, jnp.multiply, _is_number)
divide = _primitive_if_same_shape(lax.div, jnp.true_divide, dtypes.is_inexact)


def select(condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """jnp.where of two arrays of one dtype, in the same way."""
    if x.shape != y.shape or condition.shape not in ((), x.shape):
        return jnp.where(condition, x, y)
    return lax.select(condition, x, y)


def widen(x: Operand, dtype: np.dtype) -> jax.Array:
    """``x`` rounded to ``dtype``, then in the dtype torch computes in; for functions that jump (``%``, ``==``)."""
    return convert(convert(x, dtype), opmath(dtype))


def arithmetic(function: Function) -> Callable[..., jax.Array]:
    """A ctx rule: all arguments are numeric and are converted to the dtype torch promises for the result."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        compute = opmath(context.dtype)
        return convert(function(*(convert(x, compute) for x in operands)), context.dtype)

    return rule


def round_once(function: Function) -> Callable[..., jax.Array]:
    """``arithmetic`` for functions that round once at most: sums, products, choices.

    Of 16-bit floats TPUs and GPUs get them as they are. Between two operators in float32 XLA leaves the conversions
    out, and what both need is then in memory in float32, of twice the size.
    """
    wide = arithmetic(function)

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        dtype = context.dtype
        if (
            dtype.itemsize != 2
            or not dtypes.is_reduced_floating(dtype)
            or not all(_has_dtype(x, dtype) for x in operands)
        ):
            return wide(context, *operands)

        def filled_in(arrays: tuple[jax.Array, ...]) -> list[Operand]:
            left = iter(arrays)
            return [next(left) if isinstance(x, jax.Array) else x for x in operands]

        result: jax.Array = lax.platform_dependent(
            *(x for x in operands if isinstance(x, jax.Array)),
            cpu=lambda *arrays: wide(context, *filled_in(arrays)),
            default=lambda *arrays: convert(function(*(convert(x, dtype) for x in filled_in(arrays))), dtype),
        )
        return result

    return rule


def _has_dtype(x: Operand, dtype: np.dtype) -> bool:
    """Whether it has the dtype, or every one has it."""
    return x.dtype == dtype if isinstance(x, jax.Array) else not isinstance(x, Number) and x in (0, 1, -1)


def discontinuous(function: Function) -> Callable[..., jax.Array]:
    """``arithmetic`` for functions that jump: a number is first rounded to the promised dtype, as torch does."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        return convert(function(*(widen(x, context.dtype) for x in operands)), context.dtype)

    return rule


def float_only(function: Function) -> Callable[..., jax.Array]:
    """A ctx rule for functions that are the identity on integers and need no float32: ceil, floor."""

    def rule(context: LoweringRuleContext, x: jax.Array) -> jax.Array:
        return function(x) if dtypes.is_inexact(x.dtype) else x

    return rule


def comparison(function: Function) -> Callable[..., jax.Array]:
    """A ctx rule with a boolean result: the operands are promoted among themselves."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        dtype = result_type(*operands)
        return function(*(convert(x, dtype) for x in operands))

    return rule


def register_table(
    family: Callable[[Function], Callable[..., Any]], rows: Mapping[str, Function], *overloads: str
) -> None:
    """Registers ``family(function)`` for each row and each of its overloads (none: the default one)."""
    for name, function in rows.items():
        for overload in overloads or ("",):
            register(f"aten::{name}.{overload}".removesuffix("."), family(function), ctx=True)
