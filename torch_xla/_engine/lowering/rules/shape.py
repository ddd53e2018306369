"""Lowering rules that copy, concatenate, pad, repeat and rearrange elements: cat, stack, pad, roll, tril."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.dims import normalize_dim, normalize_dims
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower, register
from torch_xla._engine.lowering.rules.slice_scatter import diagonal_backward


@lower("aten::cat", ctx=True)
def cat(ctx: LoweringRuleContext, tensors: list[jax.Array], dim: int = 0) -> jax.Array:
    # torch accepts an empty vector among tensors of any rank.
    nonempty = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return lax.concatenate([convert(x, ctx.dtype) for x in nonempty], normalize_dim(dim, nonempty[0].ndim))


@lower("aten::stack", "aten::_stack", ctx=True)
def stack(ctx: LoweringRuleContext, tensors: list[jax.Array], dim: int = 0) -> jax.Array:
    return jnp.stack([convert(x, ctx.dtype) for x in tensors], dim)


@lower("aten::copy")
def copy(x: jax.Array, src: Operand, non_blocking: bool = False) -> jax.Array:
    return jnp.broadcast_to(convert(src, x.dtype), x.shape)


@lower("aten::_reshape_copy")
def _reshape_copy(x: jax.Array, size: Sequence[int]) -> jax.Array:
    return x.reshape(tuple(size))


@lower("aten::roll")
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> jax.Array:
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


@lower("aten::repeat")
def repeat(x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(x, tuple(repeats))


@lower("aten::constant_pad_nd")
def constant_pad_nd(x: jax.Array, pad: Sequence[int], value: Operand = 0) -> jax.Array:
    return lax.pad(x, convert(value, x.dtype), [(low, high, 0) for low, high in _edges(x.ndim, pad)])


def _edges(ndim: int, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Convert torch's padding, which starts at the last dimension, to (low, high) per dimension."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


def _pad_like(mode: str) -> Callable[[jax.Array, Sequence[int]], jax.Array]:
    def forward(x: jax.Array, padding: Sequence[int]) -> jax.Array:
        edges = _edges(x.ndim, padding)
        y = jnp.pad(x, [(max(low, 0), max(high, 0)) for low, high in edges], mode)
        return lax.pad(y, jnp.zeros((), x.dtype), [(min(low, 0), min(high, 0), 0) for low, high in edges])

    return forward


def _pad_backward(forward: Callable[[jax.Array, Sequence[int]], jax.Array]) -> Callable[..., jax.Array]:
    def backward(grad: jax.Array, x: jax.Array, padding: Sequence[int]) -> jax.Array:
        return jax.linear_transpose(lambda t: forward(t, padding), x)(grad)[0]

    return backward


for _name, _mode in (("reflection_pad", "reflect"), ("replication_pad", "edge")):
    for _rank in (1, 2, 3):
        _forward = _pad_like(_mode)
        register(f"aten::{_name}{_rank}d", _forward)
        register(f"aten::{_name}{_rank}d_backward", _pad_backward(_forward))


@lower("aten::pixel_shuffle")
def pixel_shuffle(x: jax.Array, factor: int) -> jax.Array:
    *batch, channels, height, width = x.shape
    channels //= factor * factor
    x = x.reshape(-1 if x.size else 0, channels, factor, factor, height, width).transpose(0, 1, 4, 2, 5, 3)
    return x.reshape(*batch, channels, height * factor, width * factor)


@lower("aten::pixel_unshuffle")
def pixel_unshuffle(x: jax.Array, factor: int) -> jax.Array:
    *batch, channels, height, width = x.shape
    height, width = height // factor, width // factor
    x = x.reshape(-1 if x.size else 0, channels, height, factor, width, factor).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(*batch, channels * factor * factor, height, width)


@lower("aten::channel_shuffle")
def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    batch, channels, *space = x.shape
    return jnp.swapaxes(x.reshape(batch, groups, channels // groups, *space), 1, 2).reshape(x.shape)


@lower("aten::diag_embed")
def diag_embed(x: jax.Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> jax.Array:
    ndim, n = x.ndim + 1, x.shape[-1] + abs(offset)
    dim1, dim2 = normalize_dim(dim1, ndim), normalize_dim(dim2, ndim)
    batch = iter(x.shape[:-1])
    return diagonal_backward(x, [n if d in (dim1, dim2) else next(batch) for d in range(ndim)], offset, dim1, dim2)


@lower("aten::block_diag", ctx=True)
def block_diag(ctx: LoweringRuleContext, tensors: list[jax.Array]) -> jax.Array:
    result, row, column = jnp.zeros(ctx.shape, ctx.dtype), 0, 0
    for x in tensors:
        x = jnp.atleast_2d(x).astype(ctx.dtype)
        result = lax.dynamic_update_slice(result, x, (row, column))
        row, column = row + x.shape[0], column + x.shape[1]
    return result


def _triangle(condition: Callable[[jax.Array, int], jax.Array]) -> Callable[..., jax.Array]:
    def rule(x: jax.Array, diagonal: int = 0) -> jax.Array:
        row, column = (lax.broadcasted_iota(np.int32, x.shape[-2:], d) for d in (0, 1))
        # Clamp the diagonal to the matrix, so that the 32-bit difference cannot overflow.
        place = max(-x.shape[-2], min(diagonal, x.shape[-1]))
        return jnp.where(condition(column - row, place), x, jnp.zeros((), x.dtype))

    return rule


register("aten::clone", lambda x, memory_format=None: x)
register("aten::flip", lambda x, dims: lax.rev(x, normalize_dims(dims, x.ndim) if dims else ()))
register("aten::rot90", lambda x, k=1, dims=(0, 1): jnp.rot90(x, k, tuple(dims)))
register("aten::tril", _triangle(lambda distance, diagonal: distance <= diagonal))
register("aten::triu", _triangle(lambda distance, diagonal: distance >= diagonal))
