"""Lowering rules of indexing with index tensors and masks: index, index_put, gather, take, masked_*.

Out-of-range indices raise on the CPU; on a device reads are clamped and writes are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.dims import at_least_1d, normalize_dim
from torch_xla._engine.lowering.registry import Operand, lower
from torch_xla._engine.lowering.scatter_target import scatter_target

Indices = Sequence[jax.Array | None]
Place = tuple[slice | jax.Array, ...]

TRUSTED: dict[str, Any] = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def accumulate(x: jax.Array, place: Place, values: jax.Array, method: str = "add", **mode: Any) -> jax.Array:
    """Add, multiply, ... ``values`` into ``place`` of ``x``; 16-bit sums and products are rounded once."""
    if x.dtype == np.bool_:
        method = {"add": "max", "multiply": "min"}.get(method, method)
    wide = opmath(x.dtype) if method in ("add", "multiply") else x.dtype
    update = getattr(scatter_target(convert(x, wide)).at[place], method)
    return convert(update(convert(values, wide), **mode), x.dtype)


def _is_mask(index: jax.Array) -> bool:
    return index.dtype in (np.bool_, np.uint8)  # torch still accepts uint8 masks


def _index_region(indices: Indices) -> Place:
    if any(i is not None and _is_mask(i) for i in indices):
        raise NotImplementedError(
            "boolean mask indexing has a data-dependent shape (reads, or masks combined with other indices)"
        )
    arrays = iter(jnp.broadcast_arrays(*(i for i in indices if i is not None)))
    return tuple(slice(None) if i is None else next(arrays) for i in indices)


@lower("aten::_unsafe_index.Tensor", "aten::index.Tensor")
def index(x: jax.Array, indices: Indices) -> jax.Array:
    return x.at[_index_region(indices)].get(mode="promise_in_bounds")


@lower("aten::_index_put_impl", "aten::_unsafe_index_put", "aten::index_put")
def index_put(x: jax.Array, indices: Indices, values: Operand, add: bool = False, unsafe: bool = False) -> jax.Array:
    values = convert(values, x.dtype)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and _is_mask(given[0][1]):
        return _mask_put(x, given[0][0], given[0][1] != 0, values, add)
    if add:
        return accumulate(x, _index_region(indices), values, mode="promise_in_bounds")
    return scatter_target(x).at[_index_region(indices)].set(values, mode="promise_in_bounds")


def _mask_put(x: jax.Array, dim: int, mask: jax.Array, values: jax.Array, add: bool) -> jax.Array:
    """Compute x[:, ..., mask] = values, with a single value, or one value per set element of the mask."""
    lead, rest = x.shape[:dim], x.shape[dim + mask.ndim :]
    count = values.shape[-1 - len(rest)] if values.ndim > len(rest) else 1
    if count == 0:
        return x
    values = jnp.broadcast_to(values, (*lead, count, *rest))
    if count == 1:
        chosen = values.reshape(*lead, *[1] * mask.ndim, *rest)
    else:
        chosen = jnp.take(values, _rank(mask), dim, mode="clip")
    written = mask.reshape(*[1] * len(lead), *mask.shape, *[1] * len(rest))
    return jnp.where(written, (x | chosen if x.dtype == np.bool_ else x + chosen) if add else chosen, x)


def _rank(mask: jax.Array) -> jax.Array:
    """Return the number of set elements of ``mask`` before each set element."""
    return (jnp.cumsum(mask.reshape(-1), dtype=np.int32) - 1).reshape(mask.shape)


@lower("aten::_unsafe_masked_index")
def _unsafe_masked_index(x: jax.Array, mask: jax.Array, indices: Indices, fill: Operand) -> jax.Array:
    return jnp.where(mask, index(x, indices), convert(fill, x.dtype))


@lower("aten::_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put(x: jax.Array, mask: jax.Array, indices: Indices, values: jax.Array) -> jax.Array:
    return index_put(x, indices, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


@lower("aten::index_select")
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if x.ndim == 0:
        return x
    return x.at[(slice(None),) * normalize_dim(dim, x.ndim) + (at_least_1d(index),)].get(**TRUSTED)


@lower("aten::gather")
def gather(x: jax.Array, dim: int, index: jax.Array, sparse_grad: bool = False) -> jax.Array:
    shape, dim = index.shape, normalize_dim(dim, x.ndim)
    x, index = at_least_1d(x), at_least_1d(index)
    if 0 in index.shape:
        return jnp.zeros(shape, x.dtype)
    sizes = [n if d == dim else index.shape[d] for d, n in enumerate(x.shape)]
    return jnp.take_along_axis(lax.slice(x, [0] * x.ndim, sizes), index, dim, mode="promise_in_bounds").reshape(shape)


@lower("aten::take")
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.reshape(-1).at[index].get(mode="promise_in_bounds")


@lower("aten::put")
def put(x: jax.Array, index: jax.Array, source: jax.Array, add: bool = False) -> jax.Array:
    flat, index, source = x.reshape(-1), index.reshape(-1), convert(source, x.dtype).reshape(-1)
    if add:
        return accumulate(flat, (index,), source, mode="promise_in_bounds").reshape(x.shape)
    return scatter_target(flat).at[index].set(source, mode="promise_in_bounds").reshape(x.shape)


@lower("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(x: jax.Array, mask: jax.Array, value: Operand) -> jax.Array:
    return jnp.where(mask, convert(value, x.dtype), x)


@lower("aten::masked_scatter")
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    x, mask = jnp.broadcast_arrays(x, mask)
    if source.size == 0:
        return x
    return jnp.where(mask, jnp.take(source.reshape(-1), _rank(mask), mode="clip"), x)


@lower("aten::masked_scatter_backward")
def masked_scatter_backward(grad: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    count = math.prod(sizes)
    grad, mask = jnp.broadcast_arrays(grad, mask)
    place, values = jnp.where(mask, _rank(mask), count).reshape(-1), grad.reshape(-1)
    return jnp.zeros(count, grad.dtype).at[place].set(values, mode="drop").reshape(sizes)


@lower("aten::nonzero_static")
def nonzero_static(x: jax.Array, size: int, fill_value: int = -1) -> jax.Array:
    if x.ndim == 0:
        return jnp.zeros((size, 0), np.int64)
    if not x.size:  # jnp.nonzero ignores fill_value for empty arrays
        return jnp.full((size, x.ndim), fill_value, np.int64)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), -1).astype(np.int64)
