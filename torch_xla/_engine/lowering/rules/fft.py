"""Lowering rules of Fourier transforms: _fft_c2c, _fft_r2c and _fft_c2r, which implement all of torch.fft."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.lowering.registry import lower

# torch's normalization code -> factor of a transform over n elements
_FACTORS: dict[int, Callable[[int], float]] = {0: lambda n: 1.0, 1: lambda n: 1 / math.sqrt(n), 2: lambda n: 1 / n}


def _apply_normalization(x: jax.Array, normalization: int, sizes: Sequence[int]) -> jax.Array:
    factor = _FACTORS[normalization](math.prod(sizes))
    return x if factor == 1 else x * factor


def _transform(x: jax.Array, kind: lax.FftType, axes: Sequence[int], sizes: Sequence[int]) -> jax.Array:
    """Apply one XLA transform over at most three axes, which must be the last; inverse transforms are not scaled."""
    order = [i for i in range(x.ndim) if i not in axes] + list(axes)
    result = lax.fft(x.transpose(order), kind, tuple(sizes)).transpose([order.index(i) for i in range(x.ndim)])
    return result * math.prod(sizes) if kind in (lax.FftType.IFFT, lax.FftType.IRFFT) else result


def _complex(x: jax.Array, axes: Sequence[int], forward: bool) -> jax.Array:
    kind = lax.FftType.FFT if forward else lax.FftType.IFFT
    for i in range(0, len(axes), 3):
        x = _transform(x, kind, axes[i : i + 3], [x.shape[a] for a in axes[i : i + 3]])
    return x


@lower("aten::_fft_c2c")
def _fft_c2c(x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    axes = [d % x.ndim for d in dim]
    return _apply_normalization(_complex(x, axes, forward), normalization, [x.shape[a] for a in axes])


@lower("aten::_fft_r2c")
def _fft_r2c(x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    axes = [d % x.ndim for d in dim]
    sizes = [x.shape[a] for a in axes]
    if onesided:
        *others, last = axes
        y = _complex(_transform(x, lax.FftType.RFFT, [last], sizes[-1:]), others, True)
    else:
        y = _complex(lax.complex(x, jnp.zeros_like(x)), axes, True)
    return _apply_normalization(y, normalization, sizes)


@lower("aten::_fft_c2r")
def _fft_c2r(x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    *others, last = [d % x.ndim for d in dim]
    y = _transform(_complex(x, others, False), lax.FftType.IRFFT, [last], [last_dim_size])
    return _apply_normalization(y, normalization, [x.shape[a] for a in others] + [last_dim_size])
