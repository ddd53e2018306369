"""Sliding windows over the last dimensions of an array; used by pooling and im2col."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.nn_common import per_dim

Ints = Sequence[int]


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """The geometry of sliding windows over the last dimensions of an array; one value per spatial dimension."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    outputs: tuple[int, ...]

    @staticmethod
    def over(
        x: jax.Array, n: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
    ) -> SlidingWindows:
        kernel, padding, dilation = per_dim(kernel, n), per_dim(padding, n), per_dim(dilation, n)
        stride = per_dim(stride, n) if stride else kernel
        size = x.shape[x.ndim - n :]
        outputs = [_outputs(*a, ceil_mode) for a in zip(size, kernel, stride, padding, dilation, strict=True)]
        return SlidingWindows(size, kernel, stride, padding, dilation, tuple(outputs))

    @property
    def n(self) -> int:
        return len(self.size)

    @property
    def disjoint(self) -> bool:
        return all(s > d * (k - 1) for s, d, k in zip(self.stride, self.dilation, self.kernel, strict=True))

    def pads(self) -> list[tuple[int, int]]:
        """Return the (low, high) padding of each dimension with which exactly ``outputs`` windows fit."""
        ends = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in self.each("outputs", "stride", "dilation", "kernel")]
        return [(p, max(e - size - p, 0)) for p, e, size in zip(self.padding, ends, self.size, strict=True)]

    def each(self, *names: str) -> zip[tuple[int, ...]]:
        """Iterate over the dimensions, with the values of the named fields."""
        return zip(*(getattr(self, name) for name in names), strict=True)

    def reduce(self, x: Any, init: Any, function: Callable[..., Any]) -> Any:
        """Apply reduce_window over the spatial dimensions of an array, or of a tuple of arrays of the same shape."""
        lead = (1,) * (jax.tree.leaves(x)[0].ndim - self.n)
        no_pads = [(0, 0)] * len(lead)
        return lax.reduce_window(
            x, init, function, lead + self.kernel, lead + self.stride, no_pads + self.pads(),
            window_dilation=lead + self.dilation,
        )  # fmt: skip

    def taps(self, x: jax.Array, fill: NDArray[Any]) -> list[tuple[tuple[int, ...], jax.Array]]:
        """Return (offset in the window, that element of every window) in row-major order of the offsets."""
        lead = x.ndim - self.n
        padded = lax.pad(x, fill, [(0, 0, 0)] * lead + [(lo, hi, 0) for lo, hi in self.pads()])
        result = []
        for offset in np.ndindex(*self.kernel):
            first = [o * d for o, d in zip(offset, self.dilation, strict=True)]
            last = [f + (n - 1) * s + 1 for f, n, s in zip(first, self.outputs, self.stride, strict=True)]
            starts, limits = [0] * lead + first, list(x.shape[:lead]) + last
            result.append((offset, lax.slice(padded, starts, limits, [1] * lead + list(self.stride))))
        return result


def _outputs(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    # windows that start in the padding at the end are dropped
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def lowest(dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the identity element of the maximum."""
    value = -math.inf if dtypes.is_inexact(dtype) else np.iinfo(dtype).min
    return np.asarray(value, dtype)
