"""Lowering rules of fractional max pooling (Graham, 2014): max pooling over windows at random positions.

For o outputs of a dimension of size s, windows of size k, and a random u in [0, 1) that is an input tensor:

    a = (s - k) / (o - 1)
    start(i) = int((i + u) a) - int(u a)
    start(o - 1) = s - k
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import register
from torch_xla._engine.lowering.rules.pooling import scatter

Ints = Sequence[int]


def _starts(drawn: jax.Array, size: int, kernel: int, outputs: int) -> jax.Array:
    """Return the start of each window; the outputs are an additional last dimension."""
    last = jnp.full((*drawn.shape, min(outputs, 1)), size - kernel, np.int32)
    if outputs < 2:
        return last
    alpha = np.asarray(size - kernel, drawn.dtype) / np.asarray(outputs - 1, drawn.dtype)

    def place(at: jax.Array) -> jax.Array:
        return (at * alpha).astype(np.int32)

    first = place(jnp.arange(outputs - 1, dtype=drawn.dtype) + drawn[..., None]) - place(drawn)[..., None]
    return jnp.concatenate([first, last], -1)


def _forward(n: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def rule(x: jax.Array, kernel: Ints, outputs: Ints, samples: jax.Array) -> tuple[jax.Array, jax.Array]:
        lead = x.ndim - n
        drawn = samples.reshape(*x.shape[:lead], n)
        taken, flat = x, jnp.zeros((1,) * x.ndim, np.int64)
        for d, (size, k, o) in enumerate(zip(x.shape[lead:], kernel, outputs, strict=True)):
            draw = drawn[..., 1 - d if n == 2 else d]  # the first of two samples is for the width
            places = _starts(draw, size, k, o)[..., None] + jnp.arange(k, dtype=np.int32)
            places = places.reshape(*x.shape[:lead], *(o * k if i == d else 1 for i in range(n)))
            taken = jnp.take_along_axis(taken, places, lead + d)
            flat = flat * size + places
        values = _windows(taken, kernel, outputs)
        where = _windows(jnp.broadcast_to(flat, taken.shape), kernel, outputs)
        best = _best(values)[..., None]
        return jnp.take_along_axis(values, best, -1)[..., 0], jnp.take_along_axis(where, best, -1)[..., 0]

    return rule


def _windows(a: jax.Array, kernel: Ints, outputs: Ints) -> jax.Array:
    """Reshape the last dimensions, each outputs * kernel, to the outputs and one dimension of window elements."""
    n = len(kernel)
    lead = a.shape[: a.ndim - n]
    pairs = [size for both in zip(outputs, kernel, strict=True) for size in both]
    split = a.reshape(*lead, *pairs)
    order = [len(lead) + 2 * i + which for which in (0, 1) for i in range(n)]
    return split.transpose(*range(len(lead)), *order).reshape(*lead, *outputs, math.prod(kernel))


def _best(values: jax.Array) -> jax.Array:
    """Return the index of the first maximum (last NaN) along the last dimension."""
    nan = jnp.isnan(values)
    last_nan = values.shape[-1] - 1 - jnp.argmax(nan[..., ::-1], -1)
    return jnp.where(nan.any(-1), last_nan, jnp.argmax(values, -1))


def _backward(n: int) -> Callable[..., jax.Array]:
    def rule(grad: jax.Array, x: jax.Array, kernel: Ints, outputs: Ints, indices: jax.Array) -> jax.Array:
        return scatter(widen(grad), indices, n, x.shape[x.ndim - n :], add=True).astype(grad.dtype)

    return rule


for _n in (2, 3):
    register(f"aten::fractional_max_pool{_n}d", _forward(_n))
    register(f"aten::fractional_max_pool{_n}d_backward", _backward(_n))
