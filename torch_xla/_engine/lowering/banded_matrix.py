"""Applies a static banded matrix along one dimension; used by resampling and adaptive average pooling.

Row o of a BandedMatrix lists the few inputs that contribute to output o, and their weights. The transpose, which
computes gradients, is a BandedMatrix as well, so that neither direction scatters. Where rows repeat with a short
period, as for integer ratios of sizes, inputs are read by slices (see stencils.py), else by gathers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from torch_xla._engine.lowering import stencils

# Wider bands use one gather and one sum; narrower ones use a chain of gathers, which fuses best.
_MOST_UNROLLED = 8


@dataclass(frozen=True, slots=True)
class BandedMatrix:
    """A banded matrix: ``weights[o, k]`` applies to input ``index[o, k]``; rows are padded with zero weights."""

    index: NDArray[Any]  # int32 [outputs, width]
    weights: NDArray[Any]  # float64 [outputs, width]
    inputs: int

    @staticmethod
    def of_entries(
        row: NDArray[Any], column: NDArray[Any], weight: NDArray[Any], outputs: int, inputs: int
    ) -> BandedMatrix:
        """Build a matrix from 1-d arrays of (row, column, weight) entries; entries at the same position add up."""
        matrix: dict[int, dict[int, float]] = {}
        for r, c, w in zip(row.tolist(), column.tolist(), weight.tolist(), strict=True):
            entries = matrix.setdefault(r, {})
            entries[c] = entries.get(c, 0.0) + w
        width = max((len(entries) for entries in matrix.values()), default=1)
        index, weights = np.zeros((outputs, width), np.int32), np.zeros((outputs, width))
        for r, entries in matrix.items():
            columns = sorted(entries)
            index[r, : len(columns)] = columns
            index[r, len(columns) :] = columns[-1]
            weights[r, : len(columns)] = [entries[c] for c in columns]
        return BandedMatrix(index, weights, inputs)

    def transpose(self) -> BandedMatrix:
        """Return the transposed matrix, which computes the gradient."""
        rows = np.broadcast_to(np.arange(len(self.index))[:, None], self.index.shape)
        used = self.weights != 0
        return BandedMatrix.of_entries(self.index[used], rows[used], self.weights[used], self.inputs, len(self.index))

    def apply(self, x: jax.Array, axis: int) -> jax.Array:
        """Multiply the matrix with ``x`` along ``axis``."""
        width = self.index.shape[1]
        if self._is_identity():
            return x
        periodic = stencils.find_stencils(self.index, self.weights, self.inputs)
        if periodic is not None:
            return stencils.apply_stencils(periodic, x, axis)

        def take(index: NDArray[Any]) -> jax.Array:
            return jnp.take(x, index, axis=axis, mode="clip")

        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        if width <= _MOST_UNROLLED:
            terms = [stencils.scale(take(self.index[:, k]), self.weights[:, k].reshape(shape)) for k in range(width)]
            return functools.reduce(jnp.add, terms)
        shape[axis : axis + 1] = self.index.shape
        taken = take(self.index.reshape(-1)).reshape(*x.shape[:axis], *self.index.shape, *x.shape[axis + 1 :])
        return stencils.scale(taken, self.weights.reshape(shape)).sum(axis + 1)

    def is_selection(self) -> bool:
        """Return whether every output is a copy of one input."""
        return self.index.shape[1] == 1 and bool(np.all(self.weights == 1))

    def _is_identity(self) -> bool:
        return self.is_selection() and np.array_equal(self.index[:, 0], np.arange(self.inputs))
