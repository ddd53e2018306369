"""Grouped matrix multiplication (mixture of experts): multiplies each group of rows with the matrix of its group.

TPU: jax's megablox kernels. Other platforms: as ``aten::_grouped_mm``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.rules.matmul import grouped_product

Tiling = tuple[int, int, int]
Maybe = jax.Array | None
LANES = 128
#: Default tile sizes of (rows, the contracted dimension, columns).
TILING = (512, 512, 512)
_FLOATS = (np.dtype(jnp.bfloat16), np.dtype(np.float32))


def gmm(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, offset: Maybe, tiling: Tiling, transpose_rhs: bool
) -> jax.Array:
    """Multiply the rows of each group with its matrix; return [m, n] in the dtype of ``lhs``.

    ``rhs`` has the matrices of the groups that start at ``offset``. Rows without a group are zero in the result.
    """
    sizes = group_sizes.astype(np.int32)
    offset = None if offset is None else offset.reshape(()).astype(np.int32)
    takes = lhs.dtype in _FLOATS and rhs.dtype in _FLOATS and 0 not in (*lhs.shape, *rhs.shape)
    kernel = functools.partial(_gmm_tpu, tiling, transpose_rhs) if takes else None
    found: jax.Array = platform_dependent(functools.partial(_gmm, transpose_rhs), lhs, rhs, sizes, offset, tpu=kernel)
    return found


def _gmm(transpose_rhs: bool, lhs: Any, rhs: Any, sizes: Any, offset: Maybe) -> Any:
    dtype = jnp.promote_types(lhs.dtype, rhs.dtype)
    matrices = (jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs).astype(dtype)
    if offset is not None or len(sizes) > len(rhs):
        # Rows before the first local group form an extra group whose matrix is 0.
        sizes = _local(sizes, offset, len(rhs))
        matrices = jnp.concatenate([jnp.zeros_like(matrices[:1]), matrices])
    wide = jnp.promote_types(dtype, np.float32)
    ends = jnp.cumsum(sizes, dtype=np.int32)
    return grouped_product(lhs.astype(dtype), matrices, ends, np.dtype(wide)).astype(lhs.dtype)


def _local(sizes: Any, offset: Maybe, count: int) -> Any:
    """Return the number of rows before the ``count`` groups that start at ``offset``, followed by the group sizes."""
    start = jnp.int32(0) if offset is None else offset
    before = jnp.sum(jnp.where(jnp.arange(len(sizes)) < start, sizes, 0), dtype=np.int32)
    return jnp.concatenate([before[None], lax.dynamic_slice(sizes, (start,), (count,))])


def _gmm_tpu(tiling: Tiling, transpose_rhs: bool, lhs: Any, rhs: Any, sizes: Any, offset: Maybe) -> Any:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm as kernel

    rows = len(lhs)
    tiles = _tile_sizes(tiling, rows, lhs.shape[1], rhs.shape[1] if transpose_rhs else rhs.shape[2])
    padded = jnp.pad(lhs, [(0, -rows % tiles[0]), (0, 0)])
    out = kernel(padded, rhs, sizes, lhs.dtype, tiles, offset, transpose_rhs=transpose_rhs)[:rows]
    # The kernel does not write rows without a group.
    start = jnp.int32(0) if offset is None else offset
    ends = jnp.cumsum(jnp.concatenate([jnp.zeros(1, np.int32), sizes]))
    row = jnp.arange(rows, dtype=np.int32)
    return jnp.where(((row >= ends[start]) & (row < ends[start + len(rhs)]))[:, None], out, 0)


def tgmm(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, offset: Maybe, tiling: Tiling, count: int
) -> jax.Array:
    """For each of ``count`` groups from ``offset``, multiply its columns of lhs [k, m] with its rows of rhs [m, n]."""
    sizes = group_sizes.astype(np.int32)
    offset = None if offset is None else offset.reshape(()).astype(np.int32)
    takes = lhs.dtype in _FLOATS and rhs.dtype in _FLOATS and 0 not in (*lhs.shape, *rhs.shape)
    kernel = functools.partial(_tgmm_tpu, tiling, count) if takes else None
    found: jax.Array = platform_dependent(functools.partial(_tgmm, count), lhs, rhs, sizes, offset, tpu=kernel)
    return found


def _tgmm(count: int, lhs: Any, rhs: Any, sizes: Any, offset: Maybe) -> Any:
    dtype = jnp.promote_types(lhs.dtype, rhs.dtype)
    wide = np.dtype(jnp.promote_types(dtype, np.float32))
    ends = jnp.cumsum(_local(sizes, offset, count), dtype=np.int32)
    return grouped_product(lhs.astype(dtype), rhs.astype(dtype), ends, wide)[1:].astype(lhs.dtype)


def _tgmm_tpu(tiling: Tiling, count: int, lhs: Any, rhs: Any, sizes: Any, offset: Maybe) -> Any:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as kernel

    rows = len(rhs)
    tiles = _tile_sizes(tiling, rows, lhs.shape[0], rhs.shape[1])
    more = -rows % tiles[0]
    padded = jnp.pad(lhs, [(0, 0), (0, more)]), jnp.pad(rhs, [(0, more), (0, 0)])
    return kernel(*padded, sizes, lhs.dtype, tiles, offset, count)


def _tile_sizes(tiling: Tiling, *sizes: int) -> Tiling:
    """Return the requested tile sizes, limited to the dimensions they cover rounded up to full lanes."""
    m, k, n = (min(wanted, math.ceil(size / LANES) * LANES) for wanted, size in zip(tiling, sizes, strict=True))
    return m, k, n
