"""Rows of a banded matrix that repeat with a short period: each is a weighted sum of strided slices.

Slices fuse into vectorized loops. Gathers of static indices do not; a TPU computes them one row at a time.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

# Longer periods and wider stencils would be as many slices: one gather for each column of the band is smaller.
_MOST_STENCILS = 8
_MOST_COLUMNS_ADDED = 2


class Stencil(NamedTuple):
    """Every n-th row: row i reads ``weights.shape[1]`` inputs from ``offset + i * step`` on.

    The inputs of the first and last rows may lie outside; their weights are zero.
    """

    offset: int
    step: int
    weights: NDArray[Any]  # float64 [rows, inputs of a row]


def find_stencils(index: NDArray[Any], weights: NDArray[Any], inputs: int) -> list[Stencil] | None:
    """Return the stencils of rows 0, 1, ... n-1 and every n-th row after them, or None if the rows do not repeat.

    Args:
        index: int[rows, width], the inputs of each row.
        weights: float[rows, width], their weights; an input with weight zero is not read.
        inputs: the number of inputs.
    """
    rows, width = index.shape
    period = rows // math.gcd(rows, inputs)
    if not rows or period > _MOST_STENCILS:
        return None
    step = inputs * period // rows
    found = [_stencil(index[phase::period], weights[phase::period], step) for phase in range(period)]
    if width == 1 and not _are_equal(found):  # copies in a period, which one gather makes fastest
        return None
    return found if all(each.weights.shape[1] <= width + _MOST_COLUMNS_ADDED for each in found) else None


def _stencil(index: NDArray[Any], weights: NDArray[Any], step: int) -> Stencil:
    row, column = np.nonzero(weights)
    offsets = index[row, column] - row * step
    first, last = (offsets.min(), offsets.max()) if len(row) else (0, 0)
    aligned = np.zeros((len(index), last - first + 1))
    np.add.at(aligned, (row, offsets - first), weights[row, column])
    return Stencil(int(first), step, aligned)


def _are_equal(stencils: list[Stencil]) -> bool:
    first = stencils[0]
    return all(each.offset == first.offset and np.array_equal(each.weights, first.weights) for each in stencils)


def apply_stencils(stencils: list[Stencil], x: jax.Array, axis: int) -> jax.Array:
    """Multiply the matrix of these stencils with ``x`` along ``axis``."""
    if _are_equal(stencils):
        return jnp.repeat(_apply_stencil(stencils[0], x, axis), len(stencils), axis)
    phases = jnp.stack([_apply_stencil(each, x, axis) for each in stencils], axis + 1)
    return phases.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])


def _apply_stencil(stencil: Stencil, x: jax.Array, axis: int) -> jax.Array:
    """Compute the rows whose inputs are all inside together, without a bounds check, and each other row alone."""
    rows, width = stencil.weights.shape
    first = min(max(-(stencil.offset // stencil.step), 0), rows)
    last = min(max((x.shape[axis] - stencil.offset - width) // stencil.step + 1, first), rows)
    ranges = [(i, i + 1) for i in range(first)] + [(first, last)] + [(i, i + 1) for i in range(last, rows)]
    parts = [_sum_inputs(stencil, x, axis, start, end) for start, end in ranges if start < end]
    return lax.concatenate(parts, axis)


def _sum_inputs(stencil: Stencil, x: jax.Array, axis: int, first: int, last: int) -> jax.Array:
    """Return rows ``first`` to ``last - 1``."""
    offset, step, weights = stencil
    terms = []
    for k in range(weights.shape[1]):
        own = weights[first:last, k]
        if own.any():
            start = offset + k + first * step
            inputs = lax.slice_in_dim(x, start, start + (last - first - 1) * step + 1, stride=step, axis=axis)
            own = own[:1] if np.all(own == own[0]) else own
            terms.append(scale(inputs, own.reshape([-1 if i == axis else 1 for i in range(x.ndim)])))
    if not terms:
        return jnp.zeros((*x.shape[:axis], last - first, *x.shape[axis + 1 :]), x.dtype)
    return functools.reduce(jnp.add, terms)


def scale(x: jax.Array, weights: NDArray[Any]) -> jax.Array:
    """Return ``x * weights``; a weight of zero gives zero, also for an infinity or a NaN."""
    if np.all(weights == 1):
        return x
    return jnp.where(weights == 0, 0, x * weights.astype(x.dtype))
