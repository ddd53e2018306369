"""Normalizes torch's dim arguments to axis numbers; a 0-d tensor accepts dims as if it had one dimension."""

from __future__ import annotations

from collections.abc import Sequence

import jax


def normalize_dim(dim: int, ndim: int) -> int:
    """Return ``dim`` as a non-negative axis; 0 for a 0-d tensor."""
    return dim % ndim if ndim else 0


def normalize_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction: None and [] select all axes; a 0-d tensor has none."""
    if dims is None or ndim == 0:
        return tuple(range(ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(normalize_dim(d, ndim) for d in dims) if len(dims) else tuple(range(ndim))


def at_least_1d(x: jax.Array) -> jax.Array:
    """Return ``x``, reshaped to one dimension of size 1 if it is 0-d."""
    return x if x.ndim else x.reshape(1)
