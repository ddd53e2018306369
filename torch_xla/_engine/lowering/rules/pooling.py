"""Lowering rules of max and average pooling over windows of fixed size, their gradients, and max_unpool.

Values are computed by reduce_window. The flat indices that torch returns with a maximum are computed separately, so
that XLA eliminates that code if they are unused. Adaptive pooling is in adaptive_pooling.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import lower
from torch_xla._engine.lowering.sliding_windows import SlidingWindows, lowest

Ints = Sequence[int]
# Above this window size, a program with one comparison per window element is too large.
_MOST_UNROLLED = 64

#: Number of window gradients from which ATen's CPU kernel is worth a call (docs/project/cpu_kernels.md).
_LEAST_GRADIENTS = 1 << 15


def _max_pool(n: int) -> Callable[..., Any]:
    def rule(
        x: jax.Array,
        kernel: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        dilation: Ints = (1,),
        ceil_mode: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        windows = SlidingWindows.over(x, n, kernel, stride, padding, dilation, ceil_mode)
        if not windows.disjoint:
            x = cpu_kernel_call.materialize(
                x
            )  # otherwise XLA fuses the computation of x with its padding, on one thread
        return windows.reduce(x, lowest(x.dtype), lax.max), max_indices(x, windows).astype(jnp.int64)

    return rule


def max_indices(x: jax.Array, windows: SlidingWindows) -> jax.Array:
    """Return the flat spatial index of the first maximum (last NaN) of every window."""
    if math.prod(windows.kernel) > _MOST_UNROLLED:
        return _max_indices_large(x, windows)
    (offset, best), *rest = windows.taps(x, lowest(x.dtype))
    chosen = [jnp.full(best.shape, o, jnp.int32) for o in offset]
    for offset, value in rest:
        better = (value > best) | (value != value)
        best = jnp.where(better, value, best)
        chosen = [jnp.where(better, o, c) for o, c in zip(offset, chosen, strict=True)]
    flat = jnp.zeros(best.shape, jnp.int32)
    for i, (size, s, p, d) in enumerate(windows.each("size", "stride", "padding", "dilation")):
        start = lax.broadcasted_iota(jnp.int32, best.shape, best.ndim - windows.n + i) * s - p
        # if a window is all -inf, the first tap may be in the padding: move to the first element of the image
        first = jnp.where(start < 0, start + (-start + d - 1) // d * d, start)
        position = start + chosen[i] * d
        flat = flat * size + jnp.where(position < 0, first, position)
    return flat


def _max_indices_large(x: jax.Array, windows: SlidingWindows) -> jax.Array:
    space = x.shape[x.ndim - windows.n :]
    iota = jnp.broadcast_to(lax.iota(jnp.int32, math.prod(space)).reshape(space), x.shape)

    def better(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (av, ai), (bv, bi) = a, b
        first = (av > bv) | ((av == bv) & (ai < bi)) | (av != av)
        return jnp.where(first, av, bv), jnp.where(first, ai, bi)

    worst = lowest(x.dtype), np.int32(np.iinfo(np.int32).max)
    result: jax.Array = windows.reduce((x, iota), worst, better)[1]
    return result


def scatter(
    values: jax.Array, indices: jax.Array, n: int, space: Ints, *, add: bool, unique: bool = False
) -> jax.Array:
    """Write (or add) values at flat indices into zeros whose last ``n`` dimensions are ``space``."""
    lead, area = values.shape[: values.ndim - n], math.prod(space)
    rows = math.prod(lead)
    index = jnp.int32 if rows * area <= np.iinfo(np.int32).max else jnp.int64
    flat = (
        indices.reshape(rows, math.prod(values.shape[values.ndim - n :])).astype(index)
        + lax.broadcasted_iota(index, (rows, 1), 0) * area
    )
    at = jnp.zeros(rows * area, values.dtype).at[flat.reshape(-1)]
    put = at.add if add else at.set
    return put(values.reshape(-1), mode="drop", unique_indices=unique).reshape(*lead, *space)


def _max_pool_backward(n: int) -> Callable[..., Any]:
    def rule(
        grad: jax.Array,
        x: jax.Array,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        ceil_mode: bool,
        indices: jax.Array,
    ) -> jax.Array:
        windows = SlidingWindows.over(x, n, kernel, stride, padding, dilation, ceil_mode)
        space = x.shape[x.ndim - n :]

        def scattered(grad: jax.Array, indices: jax.Array, _: jax.Array) -> jax.Array:
            return scatter(widen(grad), indices, n, space, add=True, unique=windows.disjoint).astype(grad.dtype)

        def xla_lowering(grad: jax.Array, indices: jax.Array, x: jax.Array) -> list[jax.Array]:
            if set(windows.dilation) != {1}:
                return [scattered(grad, indices, x)]
            selected = lambda grad, _, x: _max_pool_grad_by_vjp(windows, grad, x)
            return [lax.platform_dependent(grad, indices, x, cpu=scattered, default=selected)]

        if not _is_profitable(n, windows, grad) or indices.dtype != np.int64:
            return xla_lowering(grad, indices, x)[0]
        return cpu_kernel_call.cpu_kernel_call(
            "max_pool2d_with_indices_backward", xla_lowering, [grad, indices], [x], default_only=[x],
            kernel=windows.kernel, stride=windows.stride, padding=windows.padding, dilation=windows.dilation,
            ceil_mode=ceil_mode,
        )[0]  # fmt: skip

    return rule


def _max_pool_grad_by_vjp(windows: SlidingWindows, grad: jax.Array, x: jax.Array) -> jax.Array:
    """Compute the gradient of max pooling by searching the maxima again, which makes their indices unnecessary.

    A scatter to arbitrary indices is slow on accelerators. Over a mesh XLA all-gathers its operands, because it cannot
    infer that the indices of each image are separate. The distribution of the gradient over several NaNs of a window
    differs from the CPU's.
    """
    lead = (1,) * (windows.n + 2 - x.ndim)  # libtpu requires two dimensions before those of the windows
    _, vjp = jax.vjp(lambda x: windows.reduce(x, lowest(x.dtype), lax.max), x.reshape(*lead, *x.shape))
    (found,) = vjp(grad.reshape(*lead, *grad.shape))
    return found.astype(grad.dtype).reshape(x.shape)


def _is_profitable(n: int, windows: SlidingWindows, grad: jax.Array) -> bool:
    """Return whether to call ATen's CPU kernel for a gradient; for windows that do not overlap XLA is as fast."""
    overlap = n == 2 and not windows.disjoint
    return (
        overlap
        and cpu_kernel_call.is_profitable(math.prod(grad.shape), _LEAST_GRADIENTS)
        and cpu_kernel_call.all_float32(grad)
    )


def _average(x: jax.Array, windows: SlidingWindows, count_pad: bool, divisor: int | None) -> jax.Array:
    total = windows.reduce(x, np.zeros((), x.dtype), lax.add)
    return total / _counts(windows, count_pad, divisor).astype(x.dtype)


def _counts(windows: SlidingWindows, count_pad: bool, divisor: int | None) -> NDArray[Any]:
    """Return the divisor of each window's sum."""
    if divisor is not None:
        return np.asarray(divisor)
    counts = np.ones((1,) * windows.n, np.int64)
    for i, (size, k, s, p, o) in enumerate(windows.each("size", "kernel", "stride", "padding", "outputs")):
        start = np.arange(o) * s - p
        end = np.minimum(start + k, size + p)
        if not count_pad:
            start, end = np.maximum(start, 0), np.minimum(end, size)
        counts = counts * np.expand_dims(end - start, tuple(j for j in range(windows.n) if j != i))
    return counts if counts.size == 0 or counts.min() != counts.max() else np.asarray(counts.flat[0])


def _avg_pool(n: int) -> Callable[..., Any]:
    def rule(
        x: jax.Array,
        kernel: Ints,
        stride: Ints = (),
        padding: Ints = (0,),
        ceil_mode: bool = False,
        count_pad: bool = True,
        divisor: int | None = None,
    ) -> jax.Array:
        windows = SlidingWindows.over(x, n, kernel, stride, padding, (1,), ceil_mode)
        if dtypes.is_inexact(x.dtype):
            return _average(widen(x), windows, count_pad, divisor).astype(x.dtype)
        total = windows.reduce(x, np.zeros((), x.dtype), lax.add)
        return lax.div(total, jnp.broadcast_to(_counts(windows, count_pad, divisor), total.shape).astype(x.dtype))

    return rule


def _avg_pool_backward(n: int) -> Callable[..., Any]:
    def rule(
        grad: jax.Array,
        x: jax.Array,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_pad: bool,
        divisor: int | None,
    ) -> jax.Array:
        windows, shape = SlidingWindows.over(x, n, kernel, stride, padding, (1,), ceil_mode), x.shape
        average = lambda x: _average(x, windows, count_pad, divisor)

        def xla_lowering(grad: jax.Array) -> list[jax.Array]:
            wide = widen(grad)
            (result,) = jax.linear_transpose(average, jax.ShapeDtypeStruct(shape, wide.dtype))(wide)
            return [result.astype(grad.dtype)]

        if not _is_profitable(n, windows, grad):
            return xla_lowering(grad)[0]
        options: dict[str, Any] = {} if divisor is None else {"divisor": divisor}
        return cpu_kernel_call.cpu_kernel_call(
            "avg_pool2d_backward", xla_lowering, [grad], [x],
            kernel=windows.kernel, stride=windows.stride, padding=windows.padding, ceil_mode=ceil_mode,
            count_pad=count_pad, **options,
        )[0]  # fmt: skip

    return rule


for _n in (2, 3):
    lower(f"aten::avg_pool{_n}d")(_avg_pool(_n))
    lower(f"aten::avg_pool{_n}d_backward")(_avg_pool_backward(_n))
    lower(f"aten::max_pool{_n}d_with_indices")(_max_pool(_n))
    lower(f"aten::max_pool{_n}d_with_indices_backward")(_max_pool_backward(_n))


@lower("aten::max_unpool2d")
def _max_unpool2d(x: jax.Array, indices: jax.Array, output_size: Ints) -> jax.Array:
    return scatter(x, indices, 2, output_size, add=False)


@lower("aten::max_unpool3d")
def _max_unpool3d(x: jax.Array, indices: jax.Array, output_size: Ints, stride: Ints, padding: Ints) -> jax.Array:
    return scatter(x, indices, 3, output_size, add=False)
