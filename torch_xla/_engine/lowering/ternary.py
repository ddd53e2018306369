"""Elementwise operators of three tensors: where, clamp, lerp, addcmul, addcdiv."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import arithmetic, table
from torch_xla._engine.lowering.registry import Context, Operand, lower


def _addcdiv(x: jax.Array, numerator: jax.Array, denominator: jax.Array, value: jax.Array) -> jax.Array:
    return x + value * (numerator / denominator)


def _addcmul(x: jax.Array, a: jax.Array, b: jax.Array, value: jax.Array) -> jax.Array:
    return x + value * a * b


def _lerp(start: jax.Array, end: jax.Array, weight: jax.Array) -> jax.Array:
    """Two forms, so that both ends are met exactly."""
    span = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * span, end - span * (1 - weight))


table(arithmetic, {"addcdiv": _addcdiv, "addcmul": _addcmul})
table(arithmetic, {"lerp": _lerp}, "Scalar", "Tensor")
table(arithmetic, {"clamp_max": jnp.minimum, "clamp_min": jnp.maximum}, "", "Tensor")


@lower("aten::clamp", "aten::clamp.Tensor", ctx=True)
def _clamp(context: Context, x: jax.Array, low: Operand | None = None, high: Operand | None = None) -> jax.Array:
    """Where low exceeds high the result is high; nan anywhere gives nan."""
    compute = opmath(context.dtype)
    x = convert(x, compute)
    x = x if low is None else jnp.maximum(x, convert(low, compute))
    x = x if high is None else jnp.minimum(x, convert(high, compute))
    return convert(x, context.dtype)


@lower("aten::where.self", ctx=True)
def _where(context: Context, condition: jax.Array, x: Operand, y: Operand) -> jax.Array:
    chosen = convert(condition, np.dtype(np.bool_))
    return jnp.where(chosen, convert(x, context.dtype), convert(y, context.dtype))
