"""Lowering rules of batch, layer and group normalization, their gradients, and renorm.

All three normalize over some axes and then scale, and share the gradient of the first step. Statistics have the dtype
and shape of their output specs, which differ between devices.
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
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower

Maybe = jax.Array | None
Ints = Sequence[int]

#: Elements from which a CPU kernel is worth a call (docs/project/cpu_kernels.md).
_LEAST_NUMBERS = 1 << 11


def _statistics(x: jax.Array, axes: Ints) -> tuple[jax.Array, jax.Array]:
    """Compute mean and variance with keepdims, in two passes: a difference of moments would lose precision."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _scale(x: jax.Array, weight: Maybe, bias: Maybe) -> jax.Array:
    if weight is not None:
        x = x * weight.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def _normalized_gradient(grad: jax.Array, normal: jax.Array, rstd: jax.Array, axes: Ints) -> jax.Array:
    """Compute the gradient of ``normal = (x - mean(x)) * rstd(x)`` with respect to x."""
    return rstd * (grad - jnp.mean(grad, axes, keepdims=True) - normal * jnp.mean(grad * normal, axes, keepdims=True))


def _cast_to_specs(ctx: LoweringRuleContext, *values: Maybe) -> tuple[Maybe, ...]:
    """Convert the values to the dtypes and shapes of the output specs; None for undefined results."""

    def cast(value: Maybe, shape: tuple[int, ...], dtype: torch.dtype | None) -> Maybe:
        if value is None or dtype is None:
            return None
        value = value.astype(dtypes.storage_numpy_dtype(dtype))
        # some devices declare empty statistics outside of training
        return jnp.zeros(shape, value.dtype) if 0 in shape else value.reshape(shape)

    return tuple(cast(value, *out) for value, out in zip(values, ctx.out_specs, strict=True))


def _gradients(ctx: LoweringRuleContext, mask: Sequence[bool], *values: jax.Array) -> tuple[Maybe, ...]:
    """Return the gradients that the mask requests, converted to their output specs; None for the others."""
    return _cast_to_specs(ctx, *(value if wanted else None for value, wanted in zip(values, mask, strict=True)))


def _is_profitable(x: jax.Array, *others: Maybe) -> bool:
    """Return whether to call a CPU kernel."""
    arrays = [x, *(other for other in others if other is not None)]
    return x.size > 0 and cpu_kernel_call.is_profitable(x.size, _LEAST_NUMBERS) and cpu_kernel_call.all_float32(*arrays)


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
    """Return the output, the mean and reciprocal deviation used for it, and the new running statistics."""
    wide = widen(x)
    if training or running_mean is None or running_var is None:
        mean, var = _batch_statistics(wide)
    else:
        mean, var = _per_channel(widen(running_mean), x), _per_channel(widen(running_var), x)
    rstd = lax.rsqrt(var + eps)
    weight, bias = (None if p is None else _per_channel(p, x) for p in (weight, bias))
    out = _scale((wide - mean) * rstd, weight, bias).astype(x.dtype)
    if training:
        count = x.size // max(x.shape[1], 1)
        unbiased = var * (count / (count - 1) if count > 1 else math.nan)
        running_mean, running_var = (
            _update_running_stat(running_mean, mean, momentum),
            _update_running_stat(running_var, unbiased, momentum),
        )
    return out, mean.reshape(-1), rstd.reshape(-1), running_mean, running_var


def _batch_statistics(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute mean and variance of each channel, with keepdims."""
    if not _is_profitable(x):
        return _statistics(x, (0, *range(2, x.ndim)))
    xla_lowering = lambda x: [found.reshape(-1) for found in _statistics(x, (0, 2))]
    each = jax.ShapeDtypeStruct((x.shape[1],), x.dtype)
    found = cpu_kernel_call.cpu_kernel_call_in_place("batch_statistics", xla_lowering, [_channels(x)], [each, each], {})
    mean, var = (_per_channel(value, x) for value in found)
    return mean, var


def _batch_sums(grad: jax.Array, x: jax.Array, mean: jax.Array) -> Sequence[jax.Array]:
    """Compute sum(grad) and sum(grad * (x - mean)) of each channel."""

    def xla_lowering(grad: jax.Array, x: jax.Array, mean: jax.Array) -> list[jax.Array]:
        axes = (0, *range(2, x.ndim))
        return [jnp.sum(grad, axes), jnp.sum(grad * (x - _per_channel(mean, x)), axes)]

    if not _is_profitable(x, grad, mean):
        return xla_lowering(grad, x, mean)
    each = jax.ShapeDtypeStruct(mean.shape, x.dtype)
    found: Sequence[jax.Array] = cpu_kernel_call.cpu_kernel_call_in_place(
        "batch_gradients", xla_lowering, [_channels(grad), _channels(x), mean], [each, each], {}
    )
    return found


def _channels(x: jax.Array) -> jax.Array:
    """Reshape to [images, channels, positions]."""
    return x.reshape(*x.shape[:2], -1)


def _update_running_stat(running: Maybe, new: jax.Array, momentum: float) -> Maybe:
    if running is None:
        return None
    return (widen(running) * (1 - momentum) + momentum * new.reshape(running.shape)).astype(running.dtype)


@lower("aten::native_batch_norm", ctx=True)
def _native_batch_norm(ctx: LoweringRuleContext, *args: Any) -> tuple[Maybe, ...]:
    return _cast_to_specs(ctx, *_batch_norm(*args)[:3])


@lower("aten::_native_batch_norm_legit.no_stats", ctx=True)
def _no_stats(ctx: LoweringRuleContext, x: jax.Array, weight: Maybe, bias: Maybe, *args: Any) -> tuple[Maybe, ...]:
    return _cast_to_specs(ctx, *_batch_norm(x, weight, bias, None, None, *args)[:3])


def _with_training(training: bool, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Insert ``training`` before momentum and eps, for overloads without it."""
    return (*args[:-2], training, *args[-2:])


@lower("aten::_native_batch_norm_legit_no_training", ctx=True)
def _no_training(ctx: LoweringRuleContext, *args: Any) -> tuple[Maybe, ...]:
    return _cast_to_specs(ctx, *_batch_norm(*_with_training(False, args))[:3])


@lower("aten::_native_batch_norm_legit_functional", ctx=True)
def _functional(ctx: LoweringRuleContext, *args: Any) -> tuple[Maybe, ...]:
    return _cast_to_specs(ctx, *_batch_norm(*args))


_NO_RESERVE = (0,)  # the cuDNN workspace that these two operators return


@lower("aten::_batch_norm_no_update", ctx=True)
def _no_update(ctx: LoweringRuleContext, *args: Any) -> tuple[Maybe, ...]:
    values = _batch_norm(*_with_training(False, args))[:3]
    return _cast_to_specs(ctx, *values, jnp.zeros(_NO_RESERVE, jnp.uint8))


@lower("aten::_batch_norm_with_update_functional", ctx=True)
def _with_update(ctx: LoweringRuleContext, *args: Any) -> tuple[Maybe, ...]:
    values = _batch_norm(*_with_training(True, args))
    return _cast_to_specs(ctx, *values[:3], jnp.zeros(_NO_RESERVE, jnp.uint8), *values[3:])


@lower("aten::batch_norm_backward", "aten::native_batch_norm_backward", ctx=True)
def _batch_norm_backward(
    ctx: LoweringRuleContext,
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
    wide, count = widen(grad), x.size // max(x.shape[1], 1)
    of_bias, along = _batch_sums(wide, widen(x), mean)
    scale = rstd if weight is None else rstd * widen(weight)
    grad_x = wide
    if train:
        normal = (widen(x) - _per_channel(mean, x)) * _per_channel(rstd, x)
        grad_x = wide - _per_channel(of_bias / count, x) - normal * _per_channel(along * rstd / count, x)
    return _gradients(ctx, mask, grad_x * _per_channel(scale, x), along * rstd, of_bias)


@lower("aten::native_layer_norm", ctx=True)
def _layer_norm(
    ctx: LoweringRuleContext, x: jax.Array, shape: Ints, weight: Maybe, bias: Maybe, eps: float
) -> tuple[Maybe, ...]:
    def xla_lowering(x: jax.Array, weight: Maybe, bias: Maybe) -> list[jax.Array]:
        wide = widen(x)
        mean, var = _statistics(wide, range(x.ndim - len(shape), x.ndim))
        rstd = lax.rsqrt(var + eps)
        return [_scale((wide - mean) * rstd, weight, bias), mean, rstd]

    if not _is_profitable(x, weight, bias):
        return _cast_to_specs(ctx, *xla_lowering(x, weight, bias))
    weight = jnp.ones(shape, x.dtype) if weight is None else weight
    bias = jnp.zeros(shape, x.dtype) if bias is None else bias
    each = jax.ShapeDtypeStruct((*x.shape[: x.ndim - len(shape)], *(1,) * len(shape)), x.dtype)
    return _cast_to_specs(
        ctx,
        *cpu_kernel_call.cpu_kernel_call_in_place(
            "layer_norm", xla_lowering, [x, weight, bias], [x, each, each], {}, eps=eps
        ),
    )


@lower("aten::native_layer_norm_backward", ctx=True)
def _layer_norm_backward(
    ctx: LoweringRuleContext,
    grad: jax.Array,
    x: jax.Array,
    shape: Ints,
    mean: jax.Array,
    rstd: jax.Array,
    weight: Maybe,
    bias: Maybe,
    mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    def xla_lowering(grad: jax.Array, x: jax.Array, mean: jax.Array, rstd: jax.Array, weight: Maybe) -> list[jax.Array]:
        outer, inner = range(x.ndim - len(shape)), range(x.ndim - len(shape), x.ndim)
        wide, rstd = widen(grad), widen(rstd)
        normal = (widen(x) - widen(mean)) * rstd
        grad_x = _normalized_gradient(_scale(wide, weight, None), normal, rstd, inner)
        return [grad_x, jnp.sum(wide * normal, outer), jnp.sum(wide, outer)]

    if not _is_profitable(x, grad, mean, rstd, weight) or not any(mask):
        return _gradients(ctx, mask, *xla_lowering(grad, x, mean, rstd, weight))
    weight = jnp.ones(shape, x.dtype) if weight is None else weight
    outs = [out for out, wanted in zip((x, weight, weight), mask, strict=True) if wanted]
    some = lambda *arrays: [found for found, wanted in zip(xla_lowering(*arrays), mask, strict=True) if wanted]
    found = iter(
        cpu_kernel_call.cpu_kernel_call_in_place(
            "layer_norm_backward", some, [grad, x, mean, rstd, weight], outs, {}, mask=mask
        )
    )
    return _cast_to_specs(ctx, *(next(found) if wanted else None for wanted in mask))


@lower("aten::native_group_norm", ctx=True)
def _group_norm(
    ctx: LoweringRuleContext,
    x: jax.Array,
    weight: Maybe,
    bias: Maybe,
    n: int,
    c: int,
    area: int,
    groups: int,
    eps: float,
) -> tuple[Maybe, ...]:
    grouped = widen(x).reshape(n, groups, c // groups, area)
    mean, var = _statistics(grouped, (2, 3))
    rstd = lax.rsqrt(var + eps)
    weight, bias = (None if p is None else p.reshape(1, groups, -1, 1) for p in (weight, bias))
    return _cast_to_specs(ctx, _scale((grouped - mean) * rstd, weight, bias), mean, rstd)


@lower("aten::native_group_norm_backward", ctx=True)
def _group_norm_backward(
    ctx: LoweringRuleContext,
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


@lower("aten::renorm", static_args=("p",))
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
