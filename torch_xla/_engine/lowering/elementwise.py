"""Rule families of elementwise operators: wrap a jax function as a rule, and register tables of such functions.

A family converts the operands to one dtype, calls the function and rounds once: 16-bit floats are computed in float32
(``round_once`` has an exception).
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
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, ScalarOperand, register, result_type

Function = Callable[..., jax.Array]


def broadcast_scalar(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast a 0-d ``x`` to ``shape``; return an array that has this shape unchanged."""
    return x if x.shape == shape else lax.broadcast(x, shape)


def _primitive_if_same_shape(primitive: Function, function: Function, has: Callable[[np.dtype], bool]) -> Function:
    """Wrap a jax.numpy function of two arrays of one dtype to bind its primitive directly where that is equivalent.

    jax traces each jax.numpy call as a separate function, which takes half the time of tracing an optimizer step.
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
    """Compute jnp.where of two arrays of one dtype; bind the select primitive directly where that is equivalent."""
    if x.shape != y.shape or condition.shape not in ((), x.shape):
        return jnp.where(condition, x, y)
    return lax.select(condition, x, y)


def widen(x: Operand, dtype: np.dtype) -> jax.Array:
    """Round ``x`` to ``dtype``, then convert it to the dtype torch computes in; for discontinuous functions (``%``)."""
    return convert(convert(x, dtype), opmath(dtype))


def arithmetic(function: Function) -> Callable[..., jax.Array]:
    """Return a ctx rule of numeric arguments, which are converted to the dtype of the output spec."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        compute = opmath(context.dtype)
        return convert(function(*(convert(x, compute) for x in operands)), context.dtype)

    return rule


def round_once(function: Function) -> Callable[..., jax.Array]:
    """Return an ``arithmetic`` rule for functions that round at most once: sums, products, selections.

    On TPUs and GPUs the rule computes 16-bit floats in 16 bits. If two consecutive operators computed in float32, XLA
    would remove the conversions between them and store the value that both read in float32, at twice the size.
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
    """Return whether ``x`` has the dtype, or is a Python number that is exact in every dtype."""
    return x.dtype == dtype if isinstance(x, jax.Array) else not isinstance(x, ScalarOperand) and x in (0, 1, -1)


def discontinuous(function: Function) -> Callable[..., jax.Array]:
    """Return an ``arithmetic`` rule for discontinuous functions: numbers are first rounded to the result's dtype."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        return convert(function(*(widen(x, context.dtype) for x in operands)), context.dtype)

    return rule


def float_only(function: Function) -> Callable[..., jax.Array]:
    """Return a ctx rule for functions that are the identity on integers and need no float32: ceil, floor."""

    def rule(context: LoweringRuleContext, x: jax.Array) -> jax.Array:
        return function(x) if dtypes.is_inexact(x.dtype) else x

    return rule


def comparison(function: Function) -> Callable[..., jax.Array]:
    """Return a ctx rule with a boolean result; the operands are promoted to a common dtype."""

    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        dtype = result_type(*operands)
        return function(*(convert(x, dtype) for x in operands))

    return rule


def register_table(
    family: Callable[[Function], Callable[..., Any]], rows: Mapping[str, Function], *overloads: str
) -> None:
    """Register ``family(function)`` for each row and each overload; without overloads, for the default overload."""
    for name, function in rows.items():
        for overload in overloads or ("",):
            register(f"aten::{name}.{overload}".removesuffix("."), family(function), ctx=True)
