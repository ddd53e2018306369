"""Lowering rules of grid_sample, its gradients, and affine_grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import lower

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _source(point: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Convert coordinates in [-1, 1] to element positions."""
    return (point + 1) / 2 * (size - 1) if align_corners else ((point + 1) * size - 1) / 2


def _clip_coordinates(x: jax.Array, size: int) -> jax.Array:
    # written so that the gradient is 0 at both ends, as in torch, and nan becomes 0
    return jnp.where(x > 0, jnp.where(x >= size - 1, size - 1, x), 0)


def _reflect_coordinates(x: jax.Array, size: int, align_corners: bool) -> jax.Array:
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return jnp.zeros_like(x)
    x = x - low
    x = jnp.where(x < 0, -x, x)
    extra = jnp.fmod(x, span)
    return jnp.where(jnp.floor(x / span) % 2 == 0, extra, span - extra) + low


def _apply_padding_mode(x: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    """Clip or reflect the position into the image, by the padding mode."""
    if padding == _ZEROS:
        return x
    return _clip_coordinates(_reflect_coordinates(x, size, align_corners) if padding == _REFLECTION else x, size)


def _cubic_weights(t: jax.Array) -> list[jax.Array]:
    a = -0.75

    def near(x: jax.Array) -> jax.Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: jax.Array) -> jax.Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taps(point: jax.Array, size: int, mode: int, padding: int, align_corners: bool) -> list[tuple[jax.Array, ...]]:
    """Return (position, weight) of the elements that contribute to the sample along one dimension."""
    x = _source(point, size, align_corners)
    if mode == _BICUBIC:
        low = jax.lax.stop_gradient(jnp.floor(x))
        places = [_apply_padding_mode(low + k, size, padding, align_corners) for k in (-1, 0, 1, 2)]
        return list(zip(places, _cubic_weights(x - low), strict=True))
    x = _apply_padding_mode(x, size, padding, align_corners)
    if mode == _NEAREST:
        place = jax.lax.stop_gradient(jnp.round(x))
        return [(place, jnp.ones_like(x))]
    low = jax.lax.stop_gradient(jnp.floor(x))
    return [(low, 1 - (x - low)), (low + 1, x - low)]


def _sample(image: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    n, channels, *space = image.shape
    if 0 in (n, channels, *grid.shape):
        return jnp.zeros((n, channels, *grid.shape[1:-1]), image.dtype)
    flat = image.reshape(n, channels, math.prod(space))
    # the grid lists the last dimension first
    taps = [_taps(grid[..., -1 - i], size, mode, padding, align_corners) for i, size in enumerate(space)]
    total = jnp.zeros((n, channels, *grid.shape[1:-1]), image.dtype)
    for corner in itertools.product(*taps):
        index, weight = jnp.zeros(grid.shape[:-1], jnp.int32), jnp.ones(grid.shape[:-1], image.dtype)
        inside = jnp.ones(grid.shape[:-1], bool)
        for (place, share), size in zip(corner, space, strict=True):
            inside &= (place >= 0) & (place <= size - 1)
            index = index * size + jnp.clip(place, 0, size - 1).astype(jnp.int32)
            weight = weight * share
        values = jnp.take_along_axis(flat, index.reshape(n, 1, -1), 2, mode="clip").reshape(total.shape)
        total = total + jnp.where(inside[:, None], values * weight[:, None], 0)
    # torch multiplies images by non-finite weights, but not volumes, nor in nearest mode.
    if len(space) == 2 and (mode == _BICUBIC or (mode == _BILINEAR and padding == _ZEROS)):
        finite = jnp.isfinite(grid).all(-1)
        total = jnp.where(finite[:, None], total, jnp.nan)
    return total


@lower("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def _grid_sampler(image: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    return _sample(widen(image), widen(grid), mode, padding, align_corners).astype(image.dtype)


@lower("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad: jax.Array,
    image: jax.Array,
    grid: jax.Array,
    mode: int,
    padding: int,
    align_corners: bool,
    mask: Sequence[bool],
) -> tuple[jax.Array | None, jax.Array]:
    sample = lambda image, grid: _sample(image, grid, mode, padding, align_corners)
    _, pull = jax.vjp(sample, widen(image), widen(grid))
    for_image, for_grid = pull(widen(grad))
    # torch always returns the gradient of the grid; XLA eliminates it if it is unused
    return for_image.astype(image.dtype) if mask[0] else None, for_grid.astype(grid.dtype)


@lower("aten::affine_grid_generator")
def _affine_grid_generator(theta: jax.Array, size: Sequence[int], align_corners: bool) -> jax.Array:
    space = size[2:]
    wide = widen(theta)
    rows, last = wide[..., :-1], wide[..., -1]
    shape = (len(last), *(1,) * len(space), len(space))
    total = last.reshape(shape)
    for i, length in enumerate(space):
        steps = np.linspace(-1, 1, length) if length > 1 else np.zeros(length)
        steps = steps if align_corners else steps * (length - 1) / length
        along = [length if j == i else 1 for j in range(len(space))]
        total = total + rows[..., -1 - i].reshape(shape) * steps.astype(wide.dtype).reshape(1, *along, 1)
    return total.astype(theta.dtype)
