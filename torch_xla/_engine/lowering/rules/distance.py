"""Lowering rules of distances between vectors: dist, cdist and pdist, with gradients."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.matmul import precision_for
from torch_xla._engine.lowering.rules.reduction import vector_norm

MATMUL_ROWS = 25  # with more rows, torch computes euclidean distances by matrix multiplication


@lower("aten::dist", ctx=True, static_args=("p",))
def dist(ctx: LoweringRuleContext, x: jax.Array, y: jax.Array, p: float = 2) -> jax.Array:
    wide = jnp.result_type(opmath(ctx.dtype), *(v.dtype for v in (x, y) if jnp.iscomplexobj(v)))
    return convert(vector_norm(convert(x, wide) - convert(y, wide), p, tuple(range(max(x.ndim, y.ndim)))), ctx.dtype)


@lower("aten::_euclidean_dist")
def euclidean_dist(x: jax.Array, y: jax.Array) -> jax.Array:
    """Compute euclidean distances by matrix multiplication: fast, but inexact for points close to each other."""
    squares = jnp.sum(x * x, -1, keepdims=True) + jnp.sum(y * y, -1)[..., None, :]
    product = jnp.matmul(x, jnp.swapaxes(y, -1, -2), precision=precision_for(x.dtype))
    return jnp.sqrt(jnp.maximum(squares - 2 * product, 0))


@lower("aten::_cdist_forward")
def cdist(x: jax.Array, y: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    many = x.shape[-2] > MATMUL_ROWS or y.shape[-2] > MATMUL_ROWS
    if p == 2 and (compute_mode == 1 or many and not compute_mode):
        return euclidean_dist(x, y)
    delta = x[..., :, None, :] - y[..., None, :, :]
    return vector_norm(delta, p, (delta.ndim - 1,)) if delta.shape[-1] else jnp.zeros(delta.shape[:-1], x.dtype)


@lower("aten::_cdist_backward")
def cdist_backward(grad: jax.Array, x: jax.Array, y: jax.Array, p: float, distance: jax.Array) -> jax.Array:
    """Return the gradient of the first operand, broadcast over all batches, or of its shape if there are no distances.

    A distance of zero has no gradient.
    """
    if 0 in (grad.size, x.size):
        return jnp.zeros_like(x)
    if p == 0:
        return jnp.zeros(jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + x.shape[-2:], x.dtype)
    grad, distance = grad[..., None], distance[..., None]
    delta = x[..., :, None, :] - y[..., None, :, :]
    size = jnp.abs(delta)
    if math.isinf(p):
        slope = jnp.where(size == distance, jnp.sign(delta), 0)
    else:
        flat = (distance == 0) | (delta == 0)
        slope = jnp.sign(delta) * (jnp.where(flat, 1, size) / jnp.where(flat, 1, distance)) ** (p - 1)
    return jnp.sum(slope * grad, -2).astype(x.dtype)


@lower("aten::_pdist_forward")
def pdist(x: jax.Array, p: float = 2) -> jax.Array:
    """Compute the distances of the pairs i < j, row by row."""
    first, second = np.triu_indices(x.shape[0], 1)
    delta = x[first] - x[second]
    return vector_norm(delta, p, (1,)) if delta.size else jnp.zeros(delta.shape[:1], x.dtype)


@lower("aten::_pdist_backward")
def pdist_backward(grad: jax.Array, x: jax.Array, p: float, distance: jax.Array) -> jax.Array:
    places = np.triu_indices(x.shape[0], 1)
    zeros = jnp.zeros((x.shape[0], x.shape[0]), x.dtype)
    upper = [zeros.at[places].set(values) for values in (grad, distance)]
    return cdist_backward(upper[0] + upper[0].T, x, x, p, upper[1] + upper[1].T)
