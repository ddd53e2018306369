"""Batch, layer and group normalisation with their gradients, and renorm.

All three normalise over some axes and scale afterwards, and share the gradient of the first step. Statistics are kept
in whatever dtype and shape torch promises for them (they differ between devices).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import Context, Operand, lower

Maybe = jax.Array | None
Ints = Sequence[int]


def _statistics(x: jax.Array, axes: Ints) -> tuple[jax.Array, jax.Array]:
    """Mean and variance, dimensions kept. Two passes: a difference of moments would lose digits."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _scale(x: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    if weight is not None:
        x = x * weight.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def _normalized_gradient(grad: jax.Array, normal: jax.Array, rstd: jax.Array, axes: Ints) -> jax.Array:
    """The gradient of ``normal = (x - mean(x)) * rstd(x)`` in x."""
    return rstd * (grad - jnp.mean(grad, axes, keepdims=True) - normal * jnp.mean(grad * normal, axes, keepdims=True))


def _promised(ctx: Context, *values: Maybe) -> tuple[Maybe, ...]:
    """The values in the promised dtypes and shapes; None where torch promises nothing."""

    def cast(value: Maybe, shape: tuple[int, ...], dtype: torch.dtype | None) -> Maybe:
        if value is None or dtype is None:
            return None
        value = value.astype(dtypes.to_numpy(dtype))
        # outside training some devices promise empty statistics
        return jnp.zeros(shape, value.dtype) if 0 in shape else value.reshape(shape)

    return tuple(cast(value, *out) for value, out in zip(values, ctx.outs, strict=True))


def _gradients(ctx: Context, mask: Sequence[bool], *values: jax.Array) -> tuple[Maybe, ...]:
    """Those of the values that the mask asks for, as promised; None for the others."""
    return _promised(ctx, *(value if wanted else None for value, wanted in zip(values, mask, strict=True)))


def _per_channel(value: jax.Array, x: jax.Array) -> jax.Array:
    return value.reshape(1, -1, *(1,) * (x.ndim - 2))


def _batch_norm(
    x: jax.Array,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Maybe, Maybe, Maybe, Maybe, Maybe]:
    """The output, the mean and 1 / deviation that made it, and the new running statistics."""
    wide = widen(x)
    if training or running_mean is None or running_var is None:
        mean, var = _statistics(wide, (0, *range(2, x.ndim)))
    else:
        mean, var = _per_channel(widen(running_mean), x), _per_channel(widen(running_var), x)
    rstd = lax.rsqrt(var + eps)
    weight, bias = (None if p is None else _per_channel(p, x) for p in (weight, bias))
    out = _scale((wide - mean) * rstd, weight, bias).astype(x.dtype)
    if training:
        count = x.size // max(x.shape[1], 1)
        unbiased = var * (count / (count - 1) if count > 1 else math.nan)
        running_mean, running_var = _moved(running_mean, mean, momentum), _moved(running_var, unbiased, momentum)
    return out, mean.reshape(-1), rstd.reshape(-1), running_mean, running_var


def _moved(running: Maybe, new: jax.Array, momentum: float) -> Maybe:
    if running is None:
        return None
    return (widen(running) * (1 - momentum) + momentum * new.reshape(running.shape)).astype(running.dtype)


@lower("aten::native_batch_norm", ctx=True)
def _native_batch_norm(ctx: Context, *args: Any) -> tuple[Maybe, ...]:
    return _promised(ctx, *_batch_norm(*args)[:3])


@lower("aten::_native_batch_norm_legit.no_stats", ctx=True)
def _no_stats(ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, *args: Any) -> tuple[Maybe, ...]:
    return _promised(ctx, *_batch_norm(x, weight, bias, None, None, *args)[:3])


def _with_training(training: bool, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of the forms that have no ``training``, with it before momentum and eps."""
    return (*args[:-2], training, *args[-2:])


@lower("aten::_native_batch_norm_legit_no_training", ctx=True)
def _no_training(ctx: Context, *args: Any) -> tuple[Maybe, ...]:
    return _promised(ctx, *_batch_norm(*_with_training(False, args))[:3])


@lower("aten::_native_batch_norm_legit_functional", ctx=True)
def _functional(ctx: Context, *args: Any) -> tuple[Maybe, ...]:
    return _promised(ctx, *_batch_norm(*args))


_NO_RESERVE = (0,)  # the cuDNN workspace that these two operators return


@lower("aten::_batch_norm_no_update", ctx=True)
def _no_update(ctx: Context, *args: Any) -> tuple[Maybe, ...]:
    values = _batch_norm(*_with_training(False, args))[:3]
    return _promised(ctx, *values, jnp.zeros(_NO_RESERVE, jnp.uint8))


@lower("aten::_batch_norm_with_update_functional", ctx=True)
def _with_update(ctx: Context, *args: Any) -> tuple[Maybe, ...]:
    values = _batch_norm(*_with_training(True, args))
    return _promised(ctx, *values[:3], jnp.zeros(_NO_RESERVE, jnp.uint8), *values[3:])


@lower("aten::batch_norm_backward", "aten::native_batch_norm_backward", ctx=True)
def _batch_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    mask: Sequence[bool],
    reserve: Maybe = None,
) -> tuple[Maybe, ...]:
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = widen(save_mean), widen(save_invstd)
    else:
        assert running_mean is not None and running_var is not None
        mean, rstd = widen(running_mean), lax.rsqrt(widen(running_var) + eps)
    axes = (0, *range(2, x.ndim))
    wide, rstd = widen(grad), _per_channel(rstd, x)
    normal = (widen(x) - _per_channel(mean, x)) * rstd
    inner = _scale(wide, None if weight is None else _per_channel(weight, x), None)
    grad_x = _normalized_gradient(inner, normal, rstd, axes) if train else inner * rstd
    return _gradients(ctx, mask, grad_x, jnp.sum(wide * normal, axes), jnp.sum(wide, axes))


@lower("aten::native_layer_norm", ctx=True)
def _layer_norm(ctx: Context, x: jax.Array, shape: Ints, weight: Maybe, bias: Maybe, eps: float) -> tuple[Maybe, ...]:
    wide = widen(x)
    mean, var = _statistics(wide, range(x.ndim - len(shape), x.ndim))
    rstd = lax.rsqrt(var + eps)
    return _promised(ctx, _scale((wide - mean) * rstd, weight, bias), mean, rstd)


@lower("aten::native_layer_norm_backward", ctx=True)
def _layer_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    shape: Ints,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    bias: Maybe,
    mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    outer, inner = range(x.ndim - len(shape)), range(x.ndim - len(shape), x.ndim)
    wide, rstd = widen(grad), widen(rstd)
    normal = (widen(x) - widen(mean)) * rstd
    grad_x = _normalized_gradient(_scale(wide, weight, None), normal, rstd, inner)
    return _gradients(ctx, mask, grad_x, jnp.sum(wide * normal, outer), jnp.sum(wide, outer))


@lower("aten::native_group_norm", ctx=True)
def _group_norm(
    ctx: Context, x: jax.Array, weight: Maybe, bias: Maybe, n: int, c: int, area: int, groups: int, eps: float
) -> tuple[Maybe, ...]:
    grouped = widen(x).reshape(n, groups, c // groups, area)
    mean, var = _statistics(grouped, (2, 3))
    rstd = lax.rsqrt(var + eps)
    weight, bias = (None if p is None else p.reshape(1, groups, -1, 1) for p in (weight, bias))
    return _promised(ctx, _scale((grouped - mean) * rstd, weight, bias), mean, rstd)


@lower("aten::native_group_norm_backward", ctx=True)
def _group_norm_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    n: int,
    c: int,
    area: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    wide, grouped = (widen(a).reshape(n, groups, c // groups, area) for a in (grad, x))
    mean, rstd = (widen(a).reshape(n, groups, 1, 1) for a in (mean, rstd))
    normal = (grouped - mean) * rstd
    inner = _scale(wide, None if weight is None else weight.reshape(1, groups, -1, 1), None)
    grad_x = _normalized_gradient(inner, normal, rstd, (2, 3))
    return _gradients(ctx, mask, grad_x, jnp.sum(wide * normal, (0, 3)), jnp.sum(wide, (0, 3)))


@lower("aten::renorm", bake=("p",))
def _renorm(x: jax.Array, p: float, dim: int, maxnorm: Operand) -> jax.Array:
    wide = widen(x)
    axes = tuple(i for i in range(x.ndim) if i != dim % x.ndim)
    size = jnp.abs(wide)
    if p == math.inf:
        norm = jnp.max(size, axes, keepdims=True)
    else:
        norm = jnp.sum(size if p == 1 else size**p, axes, keepdims=True) ** (1 / p)
    limit = convert(maxnorm, norm.dtype)
    return (wide * jnp.where(norm > limit, limit / (norm + 1e-7), 1)).astype(x.dtype)
