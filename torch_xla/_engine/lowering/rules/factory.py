"""Lowering rules of factory functions, which create tensors from sizes and numbers: full, arange, linspace, eye.

Shape and dtype come from the output spec: the recorder has already resolved ``dtype=None``, ``*_like`` and ``new_*``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import i0e

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower, register

Real = int | float


def _fill_rule(value: Operand | None = None, position: int = 0) -> Callable[..., jax.Array]:
    """Return a rule that fills the result with ``value``, or with its argument at ``position``."""

    def rule(ctx: LoweringRuleContext, *args: Any) -> jax.Array:
        return jnp.broadcast_to(convert(args[position] if value is None else value, ctx.dtype), ctx.shape)

    return rule


register("aten::_efficientzerotensor", _fill_rule(0), ctx=True)
register("aten::fill.Scalar", _fill_rule(position=1), ctx=True)
register("aten::fill.Tensor", _fill_rule(position=1), ctx=True)
register("aten::full", _fill_rule(position=1), ctx=True)
register("aten::full_like", _fill_rule(position=1), ctx=True)
register("aten::new_full", _fill_rule(position=2), ctx=True)
register("aten::new_ones", _fill_rule(1), ctx=True)
register("aten::new_zeros", _fill_rule(0), ctx=True)
register("aten::ones", _fill_rule(1), ctx=True)
register("aten::ones_like", _fill_rule(1), ctx=True)
register("aten::scalar_tensor", _fill_rule(position=0), ctx=True)
register("aten::zero", _fill_rule(0), ctx=True)
register("aten::zeros", _fill_rule(0), ctx=True)
register("aten::zeros_like", _fill_rule(0), ctx=True)


def _ramp(ctx: LoweringRuleContext, start: Real, step: Real) -> jax.Array:
    """Compute start + i * step as torch's CPU kernel does: in int64 for integers, else in float64."""
    length = ctx.shape[0]
    work: np.dtype = np.dtype(np.float64)
    if jnp.issubdtype(ctx.dtype, np.integer):
        work, start, step = np.dtype(np.int64), int(start), int(step)
    elif float(start).is_integer() and float(step).is_integer() and abs(start) + abs(step) * length < 2**31:
        work = np.dtype(np.int32)  # as exact as float64, and inexpensive on accelerators
    return (lax.iota(work, length) * np.asarray(step, work) + np.asarray(start, work)).astype(ctx.dtype)


@lower("aten::arange", ctx=True, static_args=("end",))
def arange(ctx: LoweringRuleContext, end: Real, *_: Any) -> jax.Array:
    return _ramp(ctx, 0, 1)


@lower("aten::arange.start", ctx=True, static_args=("start", "end"))
def arange_start(ctx: LoweringRuleContext, start: Real, end: Real, *_: Any) -> jax.Array:
    return _ramp(ctx, start, 1)


@lower("aten::arange.start_step", "aten::range.step", ctx=True, static_args=("start", "end", "step"))
def arange_start_step(ctx: LoweringRuleContext, start: Real, end: Real, step: Real = 1, *_: Any) -> jax.Array:
    return _ramp(ctx, start, step)


register("aten::range", arange_start, ctx=True, static_args=("start", "end"))


def _line(start: Operand, end: Operand, steps: int, dtype: np.dtype) -> jax.Array:
    """Compute torch's linspace, which counts from the nearer end so that both ends are exact."""
    work = dtype if dtypes.is_inexact(dtype) and not dtypes.is_reduced_floating(dtype) else np.dtype(np.float64)
    work = np.dtype(np.float32) if dtypes.is_reduced_floating(dtype) else work
    # The ends are rounded to the result's dtype before the step is computed: linspace(0.9, 5.9, 6, dtype=int) is 0...5.
    first, last = (convert(convert(v, dtype), work) for v in (start, end))
    if steps == 1:
        return first.astype(dtype).reshape(1)
    # XLA replaces a division by a constant with a multiplication by its reciprocal. The barrier prevents this: an error
    # of one bit changes the truncated integer.
    step = (last - first) / lax.optimization_barrier(jnp.asarray(steps - 1, work))
    i = lax.iota(np.int32, steps)
    forth, back = first + step * i.astype(work), last - step * (steps - 1 - i).astype(work)
    return jnp.where(i < steps // 2, forth, back).astype(dtype)


@lower(
    "aten::linspace",
    "aten::linspace.Scalar_Tensor",
    "aten::linspace.Tensor_Scalar",
    "aten::linspace.Tensor_Tensor",
    ctx=True,
)
def linspace(ctx: LoweringRuleContext, start: Operand, end: Operand, steps: int, *_: Any) -> jax.Array:
    return _line(start, end, steps, ctx.dtype)


@lower(
    "aten::logspace",
    "aten::logspace.Scalar_Tensor",
    "aten::logspace.Tensor_Scalar",
    "aten::logspace.Tensor_Tensor",
    ctx=True,
)
def logspace(
    ctx: LoweringRuleContext, start: Operand, end: Operand, steps: int, base: float = 10.0, *_: Any
) -> jax.Array:
    wide = jnp.result_type(ctx.dtype, np.float64)
    # As in linspace, except for one step, as in torch.
    first, last = (convert(convert(value, ctx.dtype) if steps > 1 else value, wide) for value in (start, end))
    return jnp.power(jnp.asarray(base, wide), _line(first, last, steps, wide)).astype(ctx.dtype)


@lower("aten::kaiser_window.beta", ctx=True)
def kaiser_window(
    ctx: LoweringRuleContext, length: int, periodic: bool = True, beta: float = 12.0, *_: Any
) -> jax.Array:
    """Compute I0(beta * sqrt(1 - t**2)) / I0(beta) for t in [-1, 1].

    A periodic window is the window of length + 1 without its last element.
    """
    if length < 2:
        return jnp.ones(ctx.shape, ctx.dtype)
    steps = length if periodic else length - 1
    t = 2 * lax.iota(np.float64, length) / steps - 1
    height = jnp.sqrt(jnp.maximum(1 - t * t, 0))
    # i0e is I0 without its exponential factor, which overflows.
    return (i0e(beta * height) / i0e(beta) * jnp.exp(beta * (height - 1))).astype(ctx.dtype)


register("aten::kaiser_window", lambda ctx, length, *_: kaiser_window(ctx, length), ctx=True)
register(
    "aten::kaiser_window.periodic", lambda ctx, length, periodic, *_: kaiser_window(ctx, length, periodic), ctx=True
)


@lower("aten::eye", "aten::eye.m", ctx=True)
def eye(ctx: LoweringRuleContext, *_: Any) -> jax.Array:
    row, column = (lax.broadcasted_iota(np.int32, ctx.shape, d) for d in (0, 1))
    return (row == column).astype(ctx.dtype)


def _triangle_indices(places: Callable[[int, int, int], tuple[np.ndarray, np.ndarray]]) -> Callable[..., jax.Array]:
    def rule(ctx: LoweringRuleContext, rows: int, columns: int, offset: int = 0, *_: Any) -> jax.Array:
        return jnp.asarray(np.stack(places(rows, columns, offset)), ctx.dtype)

    return rule


register("aten::tril_indices", _triangle_indices(lambda n, m, k: np.tril_indices(n, k, m)), ctx=True)
register("aten::triu_indices", _triangle_indices(lambda n, m, k: np.triu_indices(n, k, m)), ctx=True)
