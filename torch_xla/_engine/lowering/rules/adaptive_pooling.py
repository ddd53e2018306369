"""Lowering rules of adaptive pooling.

Output i of a dimension covers the inputs from floor(i * in / out) to ceil((i + 1) * in / out).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from torch_xla._engine.lowering.banded_matrix import BandedMatrix
from torch_xla._engine.lowering.nn_common import per_dim, widen
from torch_xla._engine.lowering.registry import lower
from torch_xla._engine.lowering.rules.pooling import max_indices, scatter
from torch_xla._engine.lowering.sliding_windows import SlidingWindows, lowest


def _ranges(inputs: int, outputs: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the first input, and one past the last input, of every output."""
    i = np.arange(outputs)
    return i * inputs // outputs, -(-(i + 1) * inputs // outputs)


@functools.cache
def _band(inputs: int, outputs: int) -> BandedMatrix:
    start, end = _ranges(inputs, outputs)
    row = np.repeat(np.arange(outputs), end - start)
    column = np.concatenate([np.arange(a, b) for a, b in zip(start, end, strict=True)])
    return BandedMatrix.of_entries(row, column, np.ones(len(row)), outputs, inputs)


def _sum(x: jax.Array, axis: int, outputs: int) -> jax.Array:
    """Sum over the ranges along one dimension. With both sizes exchanged this is the transpose."""
    inputs = x.shape[axis]
    if inputs % outputs:
        return _band(inputs, outputs).apply(x, axis)
    return x.reshape(*x.shape[:axis], outputs, inputs // outputs, *x.shape[axis + 1 :]).sum(axis + 1)


def _sums(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    for axis, size in zip(range(x.ndim - len(sizes), x.ndim), sizes, strict=True):
        x = _sum(x, axis, size)
    return x


def _counts(inputs: Sequence[int], outputs: Sequence[int]) -> NDArray[Any]:
    """Return the number of inputs that each output averages, broadcastable to the outputs."""
    result = np.ones((1,) * len(inputs))
    for i, sizes in enumerate(zip(inputs, outputs, strict=True)):
        start, end = _ranges(*sizes)
        result = result * np.expand_dims(end - start, tuple(j for j in range(len(inputs)) if j != i))
    return result if result.min() != result.max() else np.asarray(result.flat[0])


@lower("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def _adaptive_avg_pool(x: jax.Array, output_size: Sequence[int]) -> jax.Array:
    n = len(output_size)
    shape = (*x.shape[: x.ndim - n], *output_size)
    if 0 in shape:
        return jnp.zeros(shape, x.dtype)
    total = _sums(widen(x), output_size)
    return (total / _counts(x.shape[x.ndim - n :], output_size).astype(total.dtype)).astype(x.dtype)


def _adaptive_avg_pool_backward(n: int) -> Callable[..., Any]:
    def rule(grad: jax.Array, x: jax.Array) -> jax.Array:
        if 0 in grad.shape:
            return jnp.zeros(x.shape, x.dtype)
        space = x.shape[x.ndim - n :]
        wide = widen(grad)
        shares = wide / _counts(space, grad.shape[grad.ndim - n :]).astype(wide.dtype)
        for axis, size in zip(range(x.ndim - n, x.ndim), space, strict=True):
            inputs = shares.shape[axis]
            even = size % inputs == 0
            shares = jnp.repeat(shares, size // inputs, axis) if even else _sum(shares, axis, size)
        return shares.astype(x.dtype)

    return rule


def _adaptive_max_pool(n: int) -> Callable[..., Any]:
    def rule(x: jax.Array, output_size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
        output_size = per_dim(output_size, n)
        space = x.shape[x.ndim - n :]
        if 0 in output_size or any(size % out for size, out in zip(space, output_size, strict=True)):
            return _uneven_max(x, output_size)
        kernel = tuple(size // out for size, out in zip(space, output_size, strict=True))
        windows = SlidingWindows.over(x, n, kernel, kernel, (0,), (1,), False)
        return windows.reduce(x, lowest(x.dtype), lax.max), max_indices(x, windows).astype(jnp.int64)

    return rule


def _uneven_max(x: jax.Array, output_size: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Reduce one dimension at a time, from the last, which yields the first maximum in row-major order."""
    lead = x.ndim - len(output_size)
    if 0 in output_size:
        shape = (*x.shape[:lead], *output_size)
        return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
    space = x.shape[lead:]
    best, flat = x, jnp.broadcast_to(lax.iota(jnp.int64, math.prod(space)).reshape(space), x.shape)
    for axis in reversed(range(lead, x.ndim)):
        best, flat = _max_over_ranges(best, flat, axis, output_size[axis - lead])
    return best, flat


def _max_over_ranges(x: jax.Array, flat: jax.Array, axis: int, outputs: int) -> tuple[jax.Array, jax.Array]:
    """Return the first maximum (last NaN) of every range along one dimension, and the value of ``flat`` there."""
    start, end = _ranges(x.shape[axis], outputs)
    best, found = (jnp.take(a, start, axis=axis, mode="clip") for a in (x, flat))
    for offset in range(1, int((end - start).max())):
        # a position past the end of a shorter range repeats its last element, which does not change the maximum
        place = np.minimum(start + offset, end - 1)
        value, here = (jnp.take(a, place, axis=axis, mode="clip") for a in (x, flat))
        better = (value > best) | (value != value)
        best, found = jnp.where(better, value, best), jnp.where(better, here, found)
    return best, found


def _adaptive_max_pool_backward(n: int) -> Callable[..., Any]:
    def rule(grad: jax.Array, x: jax.Array, indices: jax.Array) -> jax.Array:
        return scatter(widen(grad), indices, n, x.shape[x.ndim - n :], add=True).astype(grad.dtype)

    return rule


for _n in (2, 3):
    lower(f"aten::_adaptive_avg_pool{_n}d_backward")(_adaptive_avg_pool_backward(_n))
    lower(f"aten::adaptive_max_pool{_n}d")(_adaptive_max_pool(_n))
    lower(f"aten::adaptive_max_pool{_n}d_backward")(_adaptive_max_pool_backward(_n))
