"""torch's dim arguments as axis numbers; a 0-d tensor may be addressed as if it had one dimension."""

from __future__ import annotations

from collections.abc import Sequence

import jax


def normalize_dim(dim: int, ndim: int) -> int:
    """The non-negative form of ``dim``; 0 for a 0-d tensor."""
    return dim % ndim if ndim else 0


def normalize_dims(dims: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The axes a reduction runs over: None and [] mean all of them, a 0-d tensor has none."""
    if dims is None or ndim == 0:
        return tuple(range(ndim))
    dims = [dims] if isinstance(dims, int) else dims
    return tuple(normalize_dim(d, ndim) for d in dims) if len(dims) else tuple(range(ndim))


def at_least_1d(x: jax.Array) -> jax.Array:
    """``x``, with one dimension of size 1 where it has none."""
    return x if x.ndim else x.reshape(1)
