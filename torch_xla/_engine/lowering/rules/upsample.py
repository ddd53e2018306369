"""Lowering rules of upsampling: nearest, linear, bicubic and antialiased, each as one BandedMatrix per dimension.

Source positions are computed in float32 (float64 for float64 images), as torch does, because rounding determines which
of two neighbors is the nearest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.banded_matrix import BandedMatrix
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import register

#: (inputs, outputs, align_corners, scale or None, float type) -> the matrix of one dimension
Filter = Callable[[int, int, bool, "float | None", type], BandedMatrix]


def _step(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> np.floating[Any]:
    """Return the distance between two outputs, in input elements."""
    if align_corners:
        return real(inputs - 1) / real(outputs - 1) if outputs > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(inputs) / real(outputs)


@functools.cache
def _nearest(
    inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type, shift: float
) -> BandedMatrix:
    step = _step(inputs, outputs, False, scale, real)
    source = np.floor((np.arange(outputs, dtype=real) + real(shift)) * step)
    index = np.minimum(source.astype(np.int64), inputs - 1)
    return BandedMatrix.of_entries(np.arange(outputs), index, np.ones(outputs), outputs, inputs)


def _positions(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> NDArray[Any]:
    step = _step(inputs, outputs, align_corners, scale, real)
    i: NDArray[Any] = np.arange(outputs, dtype=real)
    return step * i if align_corners else step * (i + real(0.5)) - real(0.5)


@functools.cache
def _linear(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> BandedMatrix:
    source = np.maximum(_positions(inputs, outputs, align_corners, scale, real), 0)
    low = np.minimum(source.astype(np.int64), inputs - 1)
    share = np.clip(source - low.astype(real), 0, 1)
    rows = np.arange(outputs)
    columns = np.concatenate([low, np.minimum(low + 1, inputs - 1)])
    return BandedMatrix.of_entries(np.tile(rows, 2), columns, np.concatenate([1 - share, share]), outputs, inputs)


def _cubic_weight(x: NDArray[Any], a: float) -> NDArray[Any]:
    """Evaluate Keys' cubic convolution kernel with parameter ``a``."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


@functools.cache
def _cubic(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> BandedMatrix:
    source = _positions(inputs, outputs, align_corners, scale, real)
    low = np.floor(source)
    rows = np.repeat(np.arange(outputs), 4)
    columns = (low[:, None] + np.arange(-1, 3)).astype(np.int64)
    weights = _cubic_weight((source - low)[:, None] - np.arange(-1, 3), -0.75)
    return BandedMatrix.of_entries(rows, np.clip(columns, 0, inputs - 1).ravel(), weights.ravel(), outputs, inputs)


def _triangle(x: NDArray[Any]) -> NDArray[Any]:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


@functools.cache
def _antialias_weights(
    inputs: int,
    outputs: int,
    align_corners: bool,
    scale: float | None,
    real: type,
    kernel: Callable[[NDArray[Any]], NDArray[Any]],
    size: int,
) -> BandedMatrix:
    """Build the antialiased matrix; downscaling widens the kernel from ``size`` inputs to ``size`` output steps."""
    step = float(_step(inputs, outputs, align_corners, scale, real))
    stretch = max(step, 1.0)
    support = size / 2 * stretch
    rows, columns, weights = [], [], []
    for i in range(outputs):
        center = step * (i + 0.5)
        first = max(int(center - support + 0.5), 0)
        places = np.arange(first, min(int(center + support + 0.5), inputs))
        weight = kernel((places - center + 0.5) / stretch)
        total = weight.sum()
        rows.append(np.full(len(places), i))
        columns.append(places)
        weights.append(weight / total if total else weight)
    return BandedMatrix.of_entries(
        np.concatenate(rows), np.concatenate(columns), np.concatenate(weights), outputs, inputs
    )


def _bands(
    filter_: Filter,
    inputs: Sequence[int],
    outputs: Sequence[int],
    align_corners: bool,
    scales: Sequence[float | None],
    dtype: np.dtype[Any],
) -> list[BandedMatrix]:
    real = np.float64 if dtype == np.float64 else np.float32
    scales = scales or (None,) * len(outputs)
    places = zip(inputs, outputs, scales, strict=True)
    return [filter_(before, after, align_corners, scale, real) for before, after, scale in places]


def _resize(filter_: Filter) -> Callable[..., jax.Array]:
    def rule(x: jax.Array, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> jax.Array:
        bands = _bands(filter_, x.shape[2:], output_size, align_corners, scales, x.dtype)
        return _apply(bands, x)

    return rule


def _resize_backward(filter_: Filter) -> Callable[..., jax.Array]:
    def rule(
        grad: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> jax.Array:
        bands = _bands(filter_, input_size[2:], output_size, align_corners, scales, grad.dtype)
        return _apply([band.transpose() for band in bands], grad)

    return rule


def _apply(bands: Sequence[BandedMatrix], x: jax.Array) -> jax.Array:
    if all(band.is_selection() for band in bands):
        return _each_dimension(bands, x)
    if dtypes.is_inexact(x.dtype):
        return _each_dimension(bands, widen(x)).astype(x.dtype)
    limits = np.iinfo(x.dtype)
    return jnp.clip(jnp.round(_each_dimension(bands, x.astype(jnp.float32))), limits.min, limits.max).astype(x.dtype)


def _each_dimension(bands: Sequence[BandedMatrix], x: jax.Array) -> jax.Array:
    for axis, band in reversed(list(enumerate(bands, 2))):  # as torch; the innermost loops read the smaller array
        x = band.apply(x, axis)
    return x


def _without_corners(rule: Callable[..., jax.Array], before: int) -> Callable[..., jax.Array]:
    """Return the rule of a mode without the align_corners argument, which would follow ``before`` other arguments."""
    return lambda *args: rule(*args[:before], False, *args[before:])


_NEAREST = functools.partial(_nearest, shift=0.0)
_NEAREST_EXACT = functools.partial(_nearest, shift=0.5)
MODES: dict[str, Filter] = {
    "_upsample_bicubic2d_aa": functools.partial(
        _antialias_weights, kernel=functools.partial(_cubic_weight, a=-0.5), size=4
    ),
    "_upsample_bilinear2d_aa": functools.partial(_antialias_weights, kernel=_triangle, size=2),
    "_upsample_lanczos2d_aa": functools.partial(_antialias_weights, kernel=_lanczos, size=6),
    "upsample_bicubic2d": _cubic,
    "upsample_bilinear2d": _linear,
    "upsample_linear1d": _linear,
    "upsample_trilinear3d": _linear,
}
for _mode, _filter in MODES.items():
    register(f"aten::{_mode}", _resize(_filter))
    register(f"aten::{_mode}_backward", _resize_backward(_filter))
for _n in (1, 2, 3):
    for _mode, _filter in (("_upsample_nearest_exact", _NEAREST_EXACT), ("upsample_nearest", _NEAREST)):
        register(f"aten::{_mode}{_n}d", _without_corners(_resize(_filter), 2))
        register(f"aten::{_mode}{_n}d_backward", _without_corners(_resize_backward(_filter), 3))
