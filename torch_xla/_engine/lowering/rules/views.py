"""Lowering rules of ATen's view operators and their ``*_copy`` variants.

Functionalization records the ``*_copy`` variants; each rule is registered for the view operator as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.dims import normalize_dim
from torch_xla._engine.lowering.registry import ScalarOperand, register


def expand(x: jax.Array, size: Sequence[int], implicit: bool = False) -> jax.Array:
    lead = len(size) - x.ndim
    return jnp.broadcast_to(x, [x.shape[i - lead] if n == -1 else n for i, n in enumerate(size)])


def squeeze(x: jax.Array, dims: int | Sequence[int] | None = None) -> jax.Array:
    wanted = range(x.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    return lax.squeeze(x, tuple(normalize_dim(d, x.ndim) for d in wanted if x.ndim and x.shape[d] == 1))


def slice_bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Clamp slice bounds like Python and torch do. The length may be symbolic (fx_interpreter.py)."""
    if all(n is None or isinstance(n, int) for n in (length, start, end)):
        first, last, _ = slice(start, end).indices(length)
        return first, max(first, last)

    def clamped(bound: Any, default: Any) -> Any:
        if bound is None or (isinstance(bound, int) and bound >= np.iinfo(np.int64).max):
            return default
        place = length + bound if isinstance(bound, int) and bound < 0 else bound
        return jax.core.max_dim(jax.core.min_dim(place, length), 0)

    begin = clamped(start, 0)
    return begin, jax.core.max_dim(begin, clamped(end, length))


def start_index(start: ScalarOperand, length: int) -> jax.Array:
    """Convert a dynamic start to the integer type that XLA's partitioner uses for all indices."""
    return start.value.astype(np.int32 if length <= np.iinfo(np.int32).max else np.int64)


def part_at(x: jax.Array, start: ScalarOperand, size: int, dim: int) -> jax.Array:
    """Slice ``size`` elements along ``dim`` from a dynamic start."""
    index = start_index(start, x.shape[dim])
    starts = [index if d == dim else index.dtype.type(0) for d in range(x.ndim)]
    sizes = [size if d == dim else n for d, n in enumerate(x.shape)]
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def slice_(
    x: jax.Array, dim: int = 0, start: int | ScalarOperand | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    dim = normalize_dim(dim, x.ndim)
    if isinstance(start, ScalarOperand):  # the end is relative to it
        assert end is not None
        return lax.slice_in_dim(part_at(x, start, end, dim), 0, None, step, dim)
    return lax.slice_in_dim(x, *slice_bounds(x.shape[dim], start, end), step, dim)


def narrow(x: jax.Array, dim: int, start: int | ScalarOperand, length: int) -> jax.Array:
    if isinstance(start, ScalarOperand):
        return part_at(x, start, length, normalize_dim(dim, x.ndim))
    start += x.shape[dim] if start < 0 else 0
    return slice_(x, dim, start, start + length)


def select(x: jax.Array, dim: int, index: int | ScalarOperand) -> jax.Array:
    if isinstance(index, ScalarOperand):
        dim = normalize_dim(dim, x.ndim)
        return lax.squeeze(part_at(x, index, 1, dim), (dim,))
    return lax.index_in_dim(x, index, normalize_dim(dim, x.ndim), keepdims=False)


def split_with_sizes(x: jax.Array, sizes: Sequence[int], dim: int = 0) -> list[jax.Array]:
    dim, ends = normalize_dim(dim, x.ndim), np.cumsum(sizes).tolist()
    return [lax.slice_in_dim(x, end - n, end, axis=dim) for n, end in zip(sizes, ends, strict=True)]


def split(x: jax.Array, size: int, dim: int = 0) -> list[jax.Array]:
    length = x.shape[dim]
    return split_with_sizes(x, [min(size, length - i) for i in range(0, length, size or 1)] or [0], dim)


def unbind(x: jax.Array, dim: int = 0) -> list[jax.Array]:
    return [select(x, dim, i) for i in range(x.shape[dim])]


def diagonal_place(rows: int, columns: int, offset: int) -> tuple[int, int]:
    """Return (start, length) of a diagonal in the flattened matrix; its stride is columns + 1."""
    length = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    return (offset if offset >= 0 else -offset * columns), max(length, 0)


def diagonal(x: jax.Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> jax.Array:
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    *batch, rows, columns = x.shape
    start, length = diagonal_place(rows, columns, offset)
    if not length:
        return jnp.zeros((*batch, 0), x.dtype)
    end = start + (length - 1) * (columns + 1) + 1
    return lax.slice_in_dim(x.reshape(*batch, rows * columns), start, end, columns + 1, axis=-1)


def unfold(x: jax.Array, dim: int, size: int, step: int) -> jax.Array:
    if x.ndim == 0:
        return x.reshape(1)[:size]
    dim = normalize_dim(dim, x.ndim)
    count = (x.shape[dim] - size) // step + 1
    if step >= size:
        return _tiles(x, dim, size, step, count)
    starts = lax.broadcasted_iota(np.int32, (count, size), 0) * step
    windows = starts + lax.broadcasted_iota(np.int32, (count, size), 1)
    return jnp.moveaxis(x.at[(slice(None),) * dim + (windows,)].get(mode="promise_in_bounds"), dim + 1, -1)


def _tiles(x: jax.Array, dim: int, size: int, step: int, count: int) -> jax.Array:
    # Windows that do not overlap are a reshape; the elements between two windows are sliced off.
    x = resize(x, dim, count * step).reshape(*x.shape[:dim], count, step, *x.shape[dim + 1 :])
    return jnp.moveaxis(lax.slice_in_dim(x, 0, size, axis=dim + 1), dim + 1, -1)


def resize(x: jax.Array, dim: int, length: int) -> jax.Array:
    """Slice ``x``, or pad it with zeros, to ``length`` along one dimension."""
    edges = [(0, length - n if d == dim else 0, 0) for d, n in enumerate(x.shape)]
    return lax.pad(x, jnp.zeros((), x.dtype), edges)


def dims_by_stride(size: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """Return the dims of size > 1, from outermost to innermost, if each stride spans the dims inside it; else None."""
    order = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d]), key=lambda d: -stride[d])
    extent = 1
    for d in reversed(order):
        if stride[d] < extent:
            return None
        extent += (size[d] - 1) * stride[d]
    return order


def flat_positions(size: Sequence[int], stride: Sequence[int], offset: int) -> jax.Array:
    """Return the position in a flat buffer of every element of a strided view."""
    places = [lax.broadcasted_iota(np.int64, tuple(size), d) * s for d, s in enumerate(stride)]
    return sum(places, jnp.full(tuple(size), offset, np.int64))


def as_strided(
    x: jax.Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> jax.Array:
    offset, order = storage_offset or 0, dims_by_stride(size, stride)
    x = x.reshape(-1)
    if order is None or 0 in size:
        return x.at[flat_positions(size, stride, offset)].get(mode="promise_in_bounds")
    # Split the buffer into rows of the outermost stride, these into rows of the next: only reshapes, no gather.
    x = x[offset:]
    for d in order:
        x = resize(x, x.ndim - 1, size[d] * stride[d]).reshape(*x.shape[:-1], size[d], stride[d])
    x = lax.transpose(x[..., 0], np.argsort(order))
    x = x.reshape([n if d in order else 1 for d, n in enumerate(size)])
    return jnp.broadcast_to(x, size)


def view_dtype(x: jax.Array, dtype: torch.dtype) -> jax.Array:
    """Reinterpret the bytes as another dtype; the last dimension grows or shrinks with the item size."""
    old, new = np.dtype(x.dtype), dtypes.storage_numpy_dtype(dtype)
    if old == new:
        return x
    if x.ndim == 0:
        return view_dtype(x.reshape(1), dtype).reshape(())
    # bitcast_convert_type supports neither bool nor complex: convert through bytes and pairs.
    if old == np.bool_:
        return view_dtype(x.astype(np.uint8), dtype)
    if new == np.bool_:
        return view_dtype(x, torch.uint8) != 0
    if jnp.issubdtype(old, np.complexfloating):
        pairs = jnp.stack([x.real, x.imag], -1)
        return view_dtype(pairs.reshape(*x.shape[:-1], 2 * x.shape[-1]), dtype)
    if jnp.issubdtype(new, np.complexfloating):
        parts = view_dtype(x, torch.float64 if new.itemsize == 16 else torch.float32)
        pairs = parts.reshape(*parts.shape[:-1], parts.shape[-1] // 2, 2)
        return lax.complex(pairs[..., 0], pairs[..., 1])
    return _bitcast(x, new)


def _bitcast(x: jax.Array, new: np.dtype) -> jax.Array:
    old, (*batch, last) = np.dtype(x.dtype), x.shape
    if old.itemsize < new.itemsize:
        ratio = new.itemsize // old.itemsize
        x = x.reshape(*batch, last // ratio, ratio)
    y = lax.bitcast_convert_type(x, new)
    return y.reshape(*batch, last * old.itemsize // new.itemsize)


def _identity(x: jax.Array, *_: Any) -> jax.Array:
    return x


#: name of the view -> function; each is registered as ``name`` and as ``name_copy``
VIEWS: dict[str, Callable[..., Any]] = {
    "_reshape_alias": lambda x, size, stride: x.reshape(size),
    "alias": _identity,
    "as_strided": as_strided,
    "detach": _identity,
    "diagonal": diagonal,
    "expand": expand,
    "lift_fresh": _identity,
    "permute": lambda x, dims: x.transpose(dims),
    "select.int": select,
    "slice.Tensor": slice_,
    "split.Tensor": split,
    "split_with_sizes": split_with_sizes,
    "squeeze": squeeze,
    "squeeze.dim": squeeze,
    "squeeze.dims": squeeze,
    "t": lambda x: x.T,
    "transpose.int": lambda x, dim0, dim1: jnp.swapaxes(x, dim0, dim1) if x.ndim else x,
    "unbind.int": unbind,
    "unfold": unfold,
    "unsqueeze": lambda x, dim: jnp.expand_dims(x, dim),
    "view": lambda x, size: x.reshape(size),
    "view.dtype": view_dtype,
}

for _name, _function in VIEWS.items():
    _packet, _dot, _overload = _name.partition(".")
    register(f"aten::{_name}", _function)
    register(f"aten::{_packet}_copy{_dot}{_overload}", _function)

register("aten::_unsafe_view", lambda x, size: x.reshape(size))
register("aten::lift", _identity)
register("aten::narrow_copy", narrow)
