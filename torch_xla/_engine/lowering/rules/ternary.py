"""Lowering rules of elementwise operators of three tensors: where, clamp, lerp, addcmul, addcdiv."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import add, arithmetic, divide, multiply, register_table, select, subtract
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower


def _addcdiv(x: jax.Array, numerator: jax.Array, denominator: jax.Array, value: jax.Array) -> jax.Array:
    return add(x, multiply(value, divide(numerator, denominator)))


def _addcmul(x: jax.Array, a: jax.Array, b: jax.Array, value: jax.Array) -> jax.Array:
    return add(x, multiply(multiply(value, a), b))


def lerp(start: jax.Array, end: jax.Array, weight: jax.Array) -> jax.Array:
    """Interpolate between two values from the nearer one, so that both ends are exact."""
    return lerp_apply(start, end, *lerp_weights(weight))


def lerp_weights(weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return whether the start is nearer than the end, and the fraction of the span to add to the nearer one."""
    near = jnp.abs(weight) < 0.5
    return near, select(near, weight, weight - 1)


def lerp_apply(start: jax.Array, end: jax.Array, near: jax.Array, part: jax.Array) -> jax.Array:
    """Compute ``lerp`` from the results of ``lerp_weights``."""
    return add(select(near, start, end), multiply(part, subtract(end, start)))


register_table(arithmetic, {"addcdiv": _addcdiv, "addcmul": _addcmul})
register_table(arithmetic, {"lerp": lerp}, "Scalar", "Tensor")
register_table(arithmetic, {"clamp_max": jnp.minimum, "clamp_min": jnp.maximum}, "Tensor")

#: Whether numbers that the dtype does not have saturate as bounds, as from torch 2.15 on; before, -1 wraps to 255.
_BOUNDS_SATURATE = torch.zeros(1, dtype=torch.uint8, device="cpu").clamp_min(-1).item() == 0


def convert_bound(bound: Operand, dtype: np.dtype) -> jax.Array:
    """Convert a number that is a bound of clamp as the installed torch does."""
    if not _BOUNDS_SATURATE or dtype.kind not in "iu" or dtype.itemsize == 8:
        return convert(bound, dtype)
    limits = np.iinfo(dtype)
    return convert(jnp.clip(convert(bound, np.dtype(np.int64)), limits.min, limits.max), dtype)


@lower("aten::clamp", ctx=True)
def _clamp(
    context: LoweringRuleContext, x: jax.Array, low: Operand | None = None, high: Operand | None = None
) -> jax.Array:
    """Compute clamp; the result is high where low > high, and nan where any operand is nan."""
    compute = opmath(context.dtype)
    bounds = [None if bound is None else convert_bound(bound, compute) for bound in (low, high)]
    return _clamp_tensor(context, x, *bounds)


@lower("aten::clamp.Tensor", ctx=True)
def _clamp_tensor(
    context: LoweringRuleContext, x: jax.Array, low: Operand | None = None, high: Operand | None = None
) -> jax.Array:
    compute = opmath(context.dtype)
    x = convert(x, compute)
    x = x if low is None else jnp.maximum(x, convert(low, compute))
    x = x if high is None else jnp.minimum(x, convert(high, compute))
    return convert(x, context.dtype)


@lower("aten::clamp_max", ctx=True)
def _clamp_max(context: LoweringRuleContext, x: jax.Array, high: Operand) -> jax.Array:
    return _clamp(context, x, None, high)


@lower("aten::clamp_min", ctx=True)
def _clamp_min(context: LoweringRuleContext, x: jax.Array, low: Operand) -> jax.Array:
    return _clamp(context, x, low)


@lower("aten::where.self", ctx=True)
def _where(context: LoweringRuleContext, condition: jax.Array, x: Operand, y: Operand) -> jax.Array:
    chosen = convert(condition, np.dtype(np.bool_))
    return jnp.where(chosen, convert(x, context.dtype), convert(y, context.dtype))
