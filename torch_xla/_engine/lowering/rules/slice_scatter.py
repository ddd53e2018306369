"""Lowering rules of slice_scatter, select_scatter, diagonal_scatter, as_strided_scatter and their backward operators.

They return a copy of a tensor with a slice, row, diagonal or strided region replaced; the ``*_backward`` operators
write into zeros. All of them are pads and selects: a pad positions the values, with interior padding if the elements of
the region are not contiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.dims import normalize_dim
from torch_xla._engine.lowering.registry import ScalarOperand, register
from torch_xla._engine.lowering.rules.views import (
    diagonal_place,
    dims_by_stride,
    flat_positions,
    part_at,
    slice_bounds,
    start_index,
    unfold,
)
from torch_xla._engine.lowering.scatter_target import scatter_target


def _dilate(src: jax.Array, dim: int, length: int, start: int | ScalarOperand, step: int) -> jax.Array:
    """Place ``src`` at every ``step``-th position of ``dim`` from ``start``, with zeros between."""
    if isinstance(start, ScalarOperand):
        return _spread_at(src, dim, length, start, step)
    end = start + (src.shape[dim] - 1) * step + 1 if src.shape[dim] else start
    edges = [(start, length - end, step - 1) if d == dim else (0, 0, 0) for d in range(src.ndim)]
    return lax.pad(src, jnp.zeros((), src.dtype), edges)


def _spread_at(src: jax.Array, dim: int, length: int, start: ScalarOperand, step: int) -> jax.Array:
    # Pad both sides with enough zeros, then slice the result at a dynamic start: the slice fuses with its consumers.
    rest = length - ((src.shape[dim] - 1) * step + 1)
    around = [(rest, rest, step - 1) if d == dim else (0, 0, 0) for d in range(src.ndim)]
    padded = lax.pad(src, jnp.zeros((), src.dtype), around)
    return part_at(padded, ScalarOperand(rest - start.value, int), length, dim)


def _choose(x: jax.Array, src: jax.Array, dim: int, first: ScalarOperand, step: int = 1) -> jax.Array:
    """Replace every ``step``-th position of ``x`` from ``first`` by ``src``, with an elementwise select."""
    size = (src.shape[dim] - 1) * step + 1
    position = lax.broadcasted_iota(np.int64, x.shape, dim) - first.value
    written = (position >= 0) & (position < size) & (position % step == 0)
    placed = src if src.shape[dim] == 1 else _spread_at(src, dim, x.shape[dim], first, step)
    return jnp.where(written, placed, x)


def _place_at(x: jax.Array, src: jax.Array, dim: int, first: ScalarOperand) -> jax.Array:
    index = start_index(first, x.shape[dim])

    def update(x: jax.Array, src: jax.Array) -> jax.Array:
        starts = [index if d == dim else index.dtype.type(0) for d in range(x.ndim)]
        return lax.dynamic_update_slice(x, src, starts, allow_negative_indices=False)

    choose = functools.partial(_choose, dim=dim, first=first)
    result: jax.Array = lax.platform_dependent(x, src, cpu=choose, default=update)
    return result


def _join(x: jax.Array, src: jax.Array, dim: int, first: int) -> jax.Array:
    before = lax.slice_in_dim(x, 0, first, axis=dim)
    after = lax.slice_in_dim(x, first + src.shape[dim], None, axis=dim)
    return lax.concatenate([before, src, after], dim)


def insert_slice(x: jax.Array, src: jax.Array, dim: int, first: int | ScalarOperand) -> jax.Array:
    """Replace the slice of ``x`` that starts at ``first`` of dimension ``dim`` by ``src``.

    XLA's CPU compiler (jaxlib 0.10.2) computes wrong values for nested dynamic-update-slices of a value that is also
    read elsewhere, so the CPU lowering concatenates instead. tests/fuzz/test_random_programs.py has a program that
    shows it.
    """
    if src.shape[dim] == x.shape[dim]:
        return src
    if isinstance(first, ScalarOperand):
        return _place_at(x, src, dim, first)
    joined = functools.partial(_join, dim=dim, first=first)
    updated = functools.partial(lax.dynamic_update_slice_in_dim, start_index=first, axis=dim)
    result: jax.Array = lax.platform_dependent(x, src, cpu=joined, default=updated)
    return result


def slice_scatter(
    x: jax.Array,
    src: jax.Array,
    dim: int = 0,
    start: int | ScalarOperand | None = None,
    end: int | None = None,
    step: int = 1,
) -> jax.Array:
    dim, src = normalize_dim(dim, x.ndim), convert(src, x.dtype)
    if isinstance(start, ScalarOperand):
        return (
            insert_slice(x, src, dim, start) if step == 1 or src.shape[dim] == 1 else _choose(x, src, dim, start, step)
        )
    first, last = slice_bounds(x.shape[dim], start, end)
    if step == 1 or src.shape[dim] == 1:
        return insert_slice(x, src, dim, first)
    position = lax.broadcasted_iota(np.int32, x.shape, dim) - first
    written = (position >= 0) & (position < last - first) & (position % step == 0)
    return jnp.where(written, _dilate(src, dim, x.shape[dim], first, step), x)


def slice_backward(
    grad: jax.Array, sizes: Sequence[int], dim: int, start: int | ScalarOperand, end: int, step: int
) -> jax.Array:
    dim = normalize_dim(dim, grad.ndim)
    first = start if isinstance(start, ScalarOperand) else slice_bounds(sizes[dim], start, end)[0]
    return _dilate(grad, dim, sizes[dim], first, step)


def select_scatter(x: jax.Array, src: jax.Array, dim: int, index: int | ScalarOperand) -> jax.Array:
    dim = normalize_dim(dim, x.ndim)
    first = index if isinstance(index, ScalarOperand) else index % x.shape[dim]
    return insert_slice(x, jnp.expand_dims(convert(src, x.dtype), dim), dim, first)


def select_backward(grad: jax.Array, sizes: Sequence[int], dim: int, index: int | ScalarOperand) -> jax.Array:
    dim = normalize_dim(dim, len(sizes))
    first = index if isinstance(index, ScalarOperand) else index % sizes[dim]
    return _dilate(jnp.expand_dims(grad, dim), dim, sizes[dim], first, 1)


def diagonal_backward(grad: jax.Array, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> jax.Array:
    rows, columns = sizes[dim1], sizes[dim2]
    start, _ = diagonal_place(rows, columns, offset)
    start = start if grad.shape[-1] else 0
    flat = _dilate(grad, grad.ndim - 1, rows * columns, start, columns + 1)
    return jnp.moveaxis(flat.reshape(*grad.shape[:-1], rows, columns), (-2, -1), (dim1, dim2))


def diagonal_scatter(x: jax.Array, src: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    dim1, dim2 = normalize_dim(dim1, x.ndim), normalize_dim(dim2, x.ndim)
    column, row = (lax.broadcasted_iota(np.int32, x.shape, d) for d in (dim2, dim1))
    placed = diagonal_backward(convert(src, x.dtype), x.shape, offset, dim1, dim2)
    return jnp.where(column - row == offset, placed, x)


def as_strided_scatter(
    x: jax.Array, src: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    places = flat_positions(size, stride, storage_offset or 0).reshape(-1)
    distinct = dims_by_stride(size, stride) is not None and all(s or n == 1 for n, s in zip(size, stride, strict=True))
    flat = scatter_target(x.reshape(-1)).at[places]
    values = convert(src, x.dtype).reshape(-1)
    return flat.set(values, mode="promise_in_bounds", unique_indices=distinct).reshape(x.shape)


def unfold_backward(grad: jax.Array, sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    zeros = jnp.zeros(tuple(sizes), grad.dtype)
    return jax.linear_transpose(lambda x: unfold(x, dim, size, step), zeros)(grad)[0]


register("aten::as_strided_scatter", as_strided_scatter)
register("aten::diagonal_backward", diagonal_backward)
register("aten::diagonal_scatter", diagonal_scatter)
register("aten::select_backward", select_backward)
register("aten::select_scatter", select_scatter)
register("aten::slice_backward", slice_backward)
register("aten::slice_scatter", slice_scatter)
register("aten::unfold_backward", unfold_backward)
