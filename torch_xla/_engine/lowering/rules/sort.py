"""Lowering rules of sort, topk, order statistics (median, mode, kthvalue), searchsorted and histc.

nan compares greater than all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.dims import at_least_1d, normalize_dim
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower, result_type

Pair = tuple[jax.Array, jax.Array]

#: Elements from which ATen's CPU kernel is worth a call, and the dtypes it supports (docs/project/cpu_kernels.md).
_LEAST_SORTED = 1 << 13
_SORTED_BY_ATEN = (np.float32, np.float64, np.int32, np.int64)


def _is_nan(x: jax.Array) -> jax.Array:
    return jnp.isnan(x) if dtypes.is_inexact(x.dtype) else jnp.zeros(x.shape, np.bool_)


def _sort(x: jax.Array, dim: int, descending: bool = False) -> Pair:
    """Sort stably; return (values, indices). Indices are 32-bit, which sort faster."""
    places = lax.broadcasted_iota(np.int32, x.shape, dim)
    # Reversing both before and after the sort preserves the order of equal elements.
    reverse: Callable[[jax.Array], jax.Array] = (lambda v: lax.rev(v, (dim,))) if descending else (lambda v: v)
    values, places = lax.sort((reverse(x), reverse(places)), dimension=dim, num_keys=1)
    return reverse(values), reverse(places)


@lower("aten::sort")
def sort(x: jax.Array, dim: int = -1, descending: bool = False) -> Pair:
    def xla_lowering(x: jax.Array) -> list[jax.Array]:
        values, places = _sort(at_least_1d(x), normalize_dim(dim, x.ndim), descending)
        return [values.reshape(x.shape), places.astype(np.int64).reshape(x.shape)]

    if x.dtype in _SORTED_BY_ATEN and cpu_kernel_call.is_profitable(math.prod(x.shape), _LEAST_SORTED):
        outs = [x, jax.ShapeDtypeStruct(x.shape, np.int64)]
        values, places = cpu_kernel_call.cpu_kernel_call(
            "sort", xla_lowering, [x], outs, dim=dim, descending=descending
        )
    else:
        values, places = xla_lowering(x)
    return values, places


@lower("aten::sort.stable")
def sort_stable(x: jax.Array, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    return sort(x, dim, descending)


@lower("aten::topk")
def topk(x: jax.Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    keys = jnp.moveaxis(at_least_1d(x), dim, -1)
    inexact = dtypes.is_inexact(x.dtype)
    # XLA orders nans by their sign: give them the sign that makes them the largest.
    keys = jnp.where(jnp.isnan(keys), jnp.asarray(np.nan, x.dtype), keys) if inexact else keys
    flip: Callable[[jax.Array], jax.Array] = (lambda v: v) if largest else lax.neg if inexact else lax.bitwise_not
    values, places = lax.top_k(flip(keys), k)
    values, places = (jnp.moveaxis(v, -1, dim) for v in (flip(values), places.astype(np.int64)))
    return (values, places) if x.ndim else (values.reshape(()), places.reshape(()))


def _pick(pair: Pair, position: jax.Array, dim: int, keepdim: bool) -> Pair:
    """Return the element at ``position`` (with keepdims) of a sorted tensor, and its index in the original."""
    values, places = (jnp.take_along_axis(v, position, dim, mode="clip") for v in pair)
    places = places.astype(np.int64)
    return (values, places) if keepdim else (lax.squeeze(values, (dim,)), lax.squeeze(places, (dim,)))


def _statistic(position: Callable[..., jax.Array]) -> Callable[..., Pair]:
    """Return a rule that sorts and picks the element at ``position(sorted values, dim, *other arguments)``."""

    def rule(x: jax.Array, *args: Any, dim: int = -1, keepdim: bool = False) -> Pair:
        base, over = at_least_1d(x), normalize_dim(dim, x.ndim)
        pair = _sort(base, over)
        return _pick(pair, position(pair[0], over, *args), over, keepdim and x.ndim > 0)

    return rule


def _numbers(values: jax.Array, dim: int) -> jax.Array:
    return jnp.sum(~_is_nan(values), dim, dtype=np.int32, keepdims=True)


def _middle(values: jax.Array, dim: int) -> jax.Array:
    """Return the position of the lower median, or of the first nan."""
    numbers, length = _numbers(values, dim), values.shape[dim]
    return jnp.where(numbers < length, numbers, (length - 1) // 2)


def _middle_number(values: jax.Array, dim: int) -> jax.Array:
    numbers = _numbers(values, dim)
    return (jnp.where(numbers == 0, values.shape[dim], numbers) - 1) // 2


def _commonest(values: jax.Array, dim: int) -> jax.Array:
    """Return the last position of the first longest run of equal elements."""
    places = lax.broadcasted_iota(np.int32, values.shape, dim)
    starts = jnp.where(values != jnp.roll(values, 1, dim), places, 0)
    return lax.argmax(places - lax.cummax(starts, dim), dim, np.int32)[(slice(None),) * dim + (None,)]


_median, _nanmedian, _mode = _statistic(_middle), _statistic(_middle_number), _statistic(_commonest)
_kth = _statistic(lambda values, dim, k: jnp.full([n if d != dim else 1 for d, n in enumerate(values.shape)], k - 1))


def _reduce_all(rule: Callable[..., Pair]) -> Callable[[jax.Array], jax.Array]:
    def of_all(x: jax.Array) -> jax.Array:
        nothing = np.nan if dtypes.is_inexact(x.dtype) else np.iinfo(np.int64).min  # as torch converts nan to integers
        return rule(x.reshape(-1))[0] if x.size else convert(nothing, x.dtype)

    return of_all


def _reduce_dim(rule: Callable[..., Pair]) -> Callable[..., Pair]:
    return lambda x, dim=-1, keepdim=False: rule(x, dim=dim, keepdim=keepdim)


lower("aten::median")(_reduce_all(_median))
lower("aten::median.dim")(_reduce_dim(_median))
lower("aten::mode")(_reduce_dim(_mode))
lower("aten::nanmedian")(_reduce_all(_nanmedian))
lower("aten::nanmedian.dim")(_reduce_dim(_nanmedian))


@lower("aten::kthvalue")
def kthvalue(x: jax.Array, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    return _kth(x, k, dim=dim, keepdim=keepdim)


def _search(boundaries: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    """Search [batch, m] values in [batch, n] boundaries with torch's binary search.

    The steps of the search determine the result if there are nans.
    """

    def halve(_: int, bounds: Pair) -> Pair:
        low, high = bounds
        middle = (low + high) // 2
        found = jnp.take_along_axis(boundaries, middle, 1, mode="clip")
        above = (low < high) & ~(found > values if right else found >= values)
        return jnp.where(above, middle + 1, low), jnp.where(above, high, jnp.minimum(high, middle))

    low = jnp.zeros(values.shape, np.int32)
    length = boundaries.shape[1]
    return lax.fori_loop(0, length.bit_length(), halve, (low, low + length))[0] if length else low


@lower("aten::searchsorted.Scalar", "aten::searchsorted.Tensor")
def searchsorted(
    boundaries: jax.Array,
    values: Operand,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: jax.Array | None = None,
) -> jax.Array:
    if sorter is not None:
        boundaries = jnp.take_along_axis(boundaries, sorter, -1)
    common = result_type(boundaries, values)
    boundaries, values = convert(boundaries, common), convert(values, common)
    length, rows = boundaries.shape[-1], int(np.prod(boundaries.shape[:-1]))
    found = _search(
        boundaries.reshape(rows, length),
        values.reshape(rows, values.size // max(rows, 1)),
        right or side == "right",
    )
    return found.reshape(values.shape).astype(np.int32 if out_int32 else np.int64)


@lower("aten::bucketize.Scalar", "aten::bucketize.Tensor")
def bucketize(values: Operand, boundaries: jax.Array, out_int32: bool = False, right: bool = False) -> jax.Array:
    return searchsorted(boundaries, values, out_int32, right)


@lower("aten::histc", ctx=True, static_args=("min", "max"))
def histc(
    context: LoweringRuleContext, x: jax.Array, bins: int = 100, min: int | float = 0, max: int | float = 0
) -> jax.Array:
    """Count the elements in each of ``bins`` equal bins of [min, max], or of the range of the data if min == max."""
    flat = convert(x.reshape(-1), opmath(x.dtype))
    if not flat.size:
        return jnp.zeros(bins, context.dtype)
    low, high = (jnp.asarray(v, flat.dtype) for v in (min, max))
    if min == max:
        low, high = jnp.min(flat), jnp.max(flat)
    one = low == high
    low, high = jnp.where(one, low - 1, low), jnp.where(one, high + 1, high)
    wide = flat.astype(np.float64) if not dtypes.is_inexact(flat.dtype) else flat
    place = ((wide - low) * bins / (high - low)).astype(np.int32)
    place = jnp.where((flat >= low) & (flat <= high), jnp.minimum(place, bins - 1), bins)
    counts = jnp.zeros(bins, np.int32).at[place].add(1, mode="drop", wrap_negative_indices=False)
    return counts.astype(context.dtype)
