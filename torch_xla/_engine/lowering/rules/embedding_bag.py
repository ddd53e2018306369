"""Lowering rules of embedding_bag (sum, mean or max of embedding rows per bag) and its gradients.

``offset2bag`` is the bag of each index. Indices without a bag, and padding indices, have an out-of-range bag, to which
writes are dropped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.indexing import TRUSTED

Maybe = jax.Array | None
SUM, MEAN, MAX = 0, 1, 2

_DROP: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}


def _bags(indices: jax.Array, offsets: jax.Array, bags: int, padding: int) -> jax.Array:
    places = lax.iota(offsets.dtype, indices.size)
    bag = jnp.searchsorted(offsets, places, side="right").astype(indices.dtype) - 1
    inside = (bag >= 0) & (bag < bags)
    return jnp.where(inside & (indices != padding) if padding >= 0 else inside, bag, bags)


def _largest(rows: jax.Array, bag: jax.Array, indices: jax.Array, bags: int) -> tuple[jax.Array, jax.Array]:
    """Return the maximum per bag and column (0 for an empty bag), and the index of its first row (or -1)."""
    top = jnp.full((bags, rows.shape[1]), -jnp.inf, rows.dtype).at[bag].max(rows, **_DROP)
    own = top.at[bag].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    found = (rows == own) | (jnp.isnan(rows) & jnp.isnan(own))
    places = jnp.where(found, lax.broadcasted_iota(np.int32, rows.shape, 0), rows.shape[0])
    first = jnp.full(top.shape, rows.shape[0], np.int32).at[bag].min(places, **_DROP)
    index = indices.at[first].get(mode="fill", fill_value=-1, wrap_negative_indices=False)
    return jnp.where(first < rows.shape[0], top, 0), index


@lower("aten::_embedding_bag", "aten::_embedding_bag_forward_only", ctx=True)
def _embedding_bag(
    ctx: LoweringRuleContext, weight: jax.Array, indices: jax.Array, offsets: jax.Array, by_frequency: bool = False,
    mode: int = 0, sparse: bool = False, per_sample: Maybe = None, include_last: bool = False, padding: int = -1,
) -> tuple[jax.Array, ...]:  # fmt: skip
    bags = ctx.shape[0]
    bag = _bags(indices, offsets, bags, padding)
    rows = widen(weight.at[indices].get(**TRUSTED))
    if per_sample is not None:
        rows = rows * widen(per_sample)[:, None]
    counts = jnp.zeros(bags, indices.dtype).at[bag].add(1, **_DROP)
    if mode == MAX:
        out, largest = _largest(rows, bag, indices, bags)
    else:
        out, largest = jnp.zeros((bags, rows.shape[1]), rows.dtype).at[bag].add(rows, **_DROP), None
        out = out / jnp.maximum(counts, 1)[:, None] if mode == MEAN else out
    sizes = jnp.pad(counts, (0, ctx.out_specs[2][0][0] - bags))
    largest = jnp.zeros(ctx.out_specs[3][0], indices.dtype) if largest is None else largest
    results = out, bag, sizes, largest
    return tuple(convert(value, ctx.dtype_of(i)) for i, value in enumerate(results))


@lower("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward", ctx=True)
def _embedding_bag_backward(ctx: LoweringRuleContext, grad: jax.Array, indices: jax.Array, *args: Any) -> jax.Array:
    has_offsets = ctx.op == "aten::_embedding_bag_backward"
    bag, sizes, largest, rows, by_frequency, mode = args[1:7] if has_offsets else args[:6]
    per_sample = args[-2]
    wide = widen(grad)
    total = jnp.zeros((rows, grad.shape[1]), wide.dtype)
    if mode == MAX:
        columns = lax.broadcasted_iota(np.int32, largest.shape, 1)
        places = jnp.where(largest < 0, rows, largest)
        return convert(total.at[places, columns].add(wide, **_DROP), grad.dtype)
    if mode == MEAN:
        wide = wide / jnp.maximum(sizes[: wide.shape[0]], 1)[:, None]
    values = wide.at[bag].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    if by_frequency:
        values = values / jnp.zeros(rows, values.dtype).at[indices].add(1, **TRUSTED)[indices][:, None]
    if per_sample is not None:
        values = values * widen(per_sample)[:, None]
    return convert(total.at[indices].add(values, **TRUSTED), grad.dtype)


@lower("aten::_embedding_bag_per_sample_weights_backward")
def _per_sample_weights_backward(
    grad: jax.Array, weight: jax.Array, indices: jax.Array, offsets: jax.Array, bag: jax.Array, mode: int,
    padding: int = -1,
) -> jax.Array:  # fmt: skip
    wide = opmath(grad.dtype)
    of_bag = convert(grad, wide).at[bag].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return convert(jnp.sum(of_bag * convert(weight.at[indices].get(**TRUSTED), wide), 1), grad.dtype)
