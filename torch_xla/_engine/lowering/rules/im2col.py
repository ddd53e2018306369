"""Lowering rules of im2col (unfold), a strided slice per kernel element, and col2im (fold), its transpose."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import lower
from torch_xla._engine.lowering.sliding_windows import SlidingWindows

Ints = Sequence[int]


def _columns(x: jax.Array, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> jax.Array:
    windows = SlidingWindows.over(x, 2, kernel, stride, padding, dilation, False)
    taps = [tap for _, tap in windows.taps(x, np.zeros((), x.dtype))]
    *batch, channels = x.shape[:-2]
    return jnp.stack(taps, axis=-3).reshape(*batch, channels * len(taps), int(np.prod(windows.outputs)))


@lower("aten::im2col")
def _im2col(x: jax.Array, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> jax.Array:
    return _columns(x, kernel, dilation, padding, stride)


@lower("aten::col2im")
def _col2im(x: jax.Array, output_size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> jax.Array:
    *batch, rows, _ = x.shape
    wide = widen(x)
    image = jnp.zeros((*batch, rows // int(np.prod(kernel)), *output_size), wide.dtype)
    (result,) = jax.linear_transpose(lambda image: _columns(image, kernel, dilation, padding, stride), image)(wide)
    return result.astype(x.dtype)
