"""Lowering rules of writes along one dimension by an index tensor: scatter*, index_add, index_copy, index_reduce."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.dims import at_least_1d, normalize_dim
from torch_xla._engine.lowering.registry import Operand, lower, register
from torch_xla._engine.lowering.rules.indexing import TRUSTED, Place, accumulate
from torch_xla._engine.lowering.scatter_target import scatter_target

METHODS = {
    "add": "add",
    "amax": "max",
    "amin": "min",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "sum": "add",
}


def reduction_identity(dtype: np.dtype, method: str) -> np.ndarray:
    """Return the identity element of add, multiply, max or min."""
    if method in ("add", "multiply"):
        return np.asarray(method == "multiply", dtype)
    if dtype == np.bool_:
        return np.asarray(method == "min")
    if dtypes.is_inexact(dtype):
        return np.asarray(-np.inf if method == "max" else np.inf, dtype)
    return np.asarray(np.iinfo(dtype).min if method == "max" else np.iinfo(dtype).max, dtype)


def reduce_into(x: jax.Array, place: Place, values: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    """Reduce values into ``place`` of ``x``, including the previous values if ``include_self``, else replacing them."""
    method = METHODS[reduce]
    base = x if include_self else scatter_target(x).at[place].set(reduction_identity(x.dtype, method), **TRUSTED)
    if reduce != "mean":
        return accumulate(base, place, values, method, **TRUSTED)
    wide = opmath(x.dtype)
    total = scatter_target(convert(base, wide)).at[place].add(convert(values, wide), **TRUSTED)
    count = jnp.full(x.shape, include_self, wide).at[place].add(np.ones((), wide), **TRUSTED)
    count = jnp.where(count == 0, 1, count)
    return convert(total / count if dtypes.is_inexact(wide) else total // count, x.dtype)


def _element_indices(x: jax.Array, dim: int, index: jax.Array) -> Place:
    """Return the target position of every element of ``index``: its coordinates, with ``index`` along ``dim``."""
    others = jnp.ogrid[tuple(slice(n) for n in index.shape)]
    return tuple(index if d == normalize_dim(dim, x.ndim) else o for d, o in enumerate(others))


def _scatter(
    x: jax.Array, dim: int, index: jax.Array, src: Operand, reduce: str | None = None, include_self: bool = True
) -> jax.Array:
    if index.size == 0:
        return x  # of any shape: torch checks shapes only if there is something to scatter
    shape, src = x.shape, convert(src, x.dtype)
    x, index = at_least_1d(x), at_least_1d(index)
    if src.ndim:
        src = src[tuple(slice(n) for n in index.shape)]
    place, values = _element_indices(x, dim, index), jnp.broadcast_to(src, index.shape)
    if reduce is None:
        return scatter_target(x).at[place].set(values, **TRUSTED).reshape(shape)
    return reduce_into(x, place, values, reduce, include_self).reshape(shape)


@lower("aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter(x: jax.Array, dim: int, index: jax.Array, src: Operand, reduce: str | None = None) -> jax.Array:
    return _scatter(x, dim, index, src, reduce)


register("aten::scatter_add", lambda x, dim, index, src: _scatter(x, dim, index, src, "add"))
register("aten::scatter_reduce.two", _scatter)


def _row_indices(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> tuple[Place, jax.Array]:
    """Return the positions of ``x`` (1-d or more) that ``index`` selects along ``dim``; reshape ``source`` to them."""
    dim, index = normalize_dim(dim, x.ndim), at_least_1d(index)
    return (slice(None),) * dim + (index,), source.reshape(*x.shape[:dim], index.size, *x.shape[dim + 1 :])


@lower("aten::index_add")
def index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, alpha: Operand = 1) -> jax.Array:
    wide, base = opmath(x.dtype), at_least_1d(x)
    place, values = _row_indices(base, dim, index, convert(source, wide))
    factor = convert(alpha, wide)
    values = values & factor if x.dtype == np.bool_ else values * factor
    return accumulate(base, place, values, **TRUSTED).reshape(x.shape)


@lower("aten::index_copy")
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    base = at_least_1d(x)
    place, values = _row_indices(base, dim, index, convert(source, x.dtype))
    return scatter_target(base).at[place].set(values, mode="promise_in_bounds").reshape(x.shape)


@lower("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor")
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Operand) -> jax.Array:
    place = (slice(None),) * normalize_dim(dim, x.ndim) + (at_least_1d(index),)
    return (
        scatter_target(at_least_1d(x)).at[place].set(convert(value, x.dtype), mode="promise_in_bounds").reshape(x.shape)
    )


@lower("aten::index_reduce")
def index_reduce(
    x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, include_self: bool = True
) -> jax.Array:
    base = at_least_1d(x)
    place, values = _row_indices(base, dim, index, convert(source, x.dtype))
    return reduce_into(base, place, values, reduce, include_self).reshape(x.shape)
