"""Lowering rules of softmax and log_softmax along one dimension, and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower


def _axis(x: jax.Array, dim: int) -> int | None:
    """Return the axis for jax's reductions; torch accepts dimension 0 for a 0-d tensor."""
    return dim if x.ndim else None


@lower("aten::_softmax", ctx=True)
def _softmax(ctx: LoweringRuleContext, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    return _softmax_wide(x, dim).astype(ctx.dtype)


def _softmax_wide(x: jax.Array, dim: int) -> jax.Array:
    wide, axis = widen(x), _axis(x, dim)
    if wide.size == 0:
        return wide
    powers = jnp.exp(wide - jnp.max(wide, axis, keepdims=True))
    return powers / jnp.sum(powers, axis, keepdims=True)


@lower("aten::_log_softmax", ctx=True)
def _log_softmax(ctx: LoweringRuleContext, x: jax.Array, dim: int, half_to_float: bool) -> jax.Array:
    wide, axis = widen(x), _axis(x, dim)
    if wide.size == 0:
        return wide.astype(ctx.dtype)
    shifted = wide - jnp.max(wide, axis, keepdims=True)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis, keepdims=True))).astype(ctx.dtype)


@lower("aten::_safe_softmax", ctx=True)
def _safe_softmax(ctx: LoweringRuleContext, x: jax.Array, dim: int, dtype: torch.dtype | None = None) -> jax.Array:
    """Compute softmax; fully masked rows (all -inf) are 0 instead of NaN."""
    x = x if dtype is None else x.astype(dtypes.storage_numpy_dtype(dtype))
    masked = jnp.all(x == -jnp.inf, _axis(x, dim), keepdims=True)
    return jnp.where(masked, 0, _softmax_wide(x, dim)).astype(ctx.dtype)


@lower("aten::_softmax_backward_data")
def _softmax_backward(grad: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype) -> jax.Array:
    grad, output = widen(grad), widen(output)
    weighted = grad * output
    result = weighted - output * jnp.sum(weighted, _axis(output, dim), keepdims=True)
    return result.astype(dtypes.storage_numpy_dtype(input_dtype))


@lower("aten::_log_softmax_backward_data")
def _log_softmax_backward(grad: jax.Array, output: jax.Array, dim: int, input_dtype: torch.dtype) -> jax.Array:
    grad, output = widen(grad), widen(output)
    result = grad - jnp.exp(output) * jnp.sum(grad, _axis(output, dim), keepdims=True)
    return result.astype(dtypes.storage_numpy_dtype(input_dtype))
