"""Lowering rules of loss functions and their gradients: elementwise losses, nll_loss, and the margin losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.nn_common import reduce_loss, widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower, register, result_type

Maybe = jax.Array | None


def _huber(x: jax.Array, y: jax.Array, delta: float) -> jax.Array:
    distance = jnp.abs(x - y)
    return jnp.where(distance <= delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta))


def _huber_gradient(x: jax.Array, y: jax.Array, delta: float) -> jax.Array:
    return jnp.where(jnp.abs(x - y) <= delta, x - y, delta * jnp.sign(x - y))


def _smooth_l1(x: jax.Array, y: jax.Array, beta: float) -> jax.Array:
    distance = jnp.abs(x - y)
    # if beta is 0, the first branch is never selected
    return jnp.where(distance < beta, 0.5 * distance * distance / (beta or 1.0), distance - 0.5 * beta)


def _smooth_l1_gradient(x: jax.Array, y: jax.Array, beta: float) -> jax.Array:
    return jnp.where(jnp.abs(x - y) < beta, (x - y) / (beta or 1.0), jnp.sign(x - y))


def _soft_margin_gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    power = jnp.exp(-y * x)
    return -y * power / (1 + power)


#: name -> (loss, its derivative in x), functions of x, the target and what follows ``reduction`` in the schema
ELEMENTWISE: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array]]] = {
    "aten::huber_loss": (_huber, _huber_gradient),
    "aten::mse_loss": (lambda x, y: (x - y) * (x - y), lambda x, y: 2 * (x - y)),
    "aten::smooth_l1_loss": (_smooth_l1, _smooth_l1_gradient),
    "aten::soft_margin_loss": (lambda x, y: jnp.log1p(jnp.exp(-y * x)), _soft_margin_gradient),
}


def _common(*operands: Operand) -> list[jax.Array]:
    """Convert the operands to the dtype torch computes their loss in."""
    dtype = opmath(dtypes.storage_numpy_dtype(result_type(*operands)))
    return [convert(x, dtype) for x in operands]


def _forward(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def rule(ctx: LoweringRuleContext, x: Operand, target: Operand, reduction: int = 1, *constants: float) -> jax.Array:
        return reduce_loss(loss(*_common(x, target), *constants), reduction).astype(ctx.dtype)

    return rule


def _backward(gradient: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def rule(
        ctx: LoweringRuleContext, grad: jax.Array, x: Operand, target: Operand, reduction: int, *constants: float
    ) -> jax.Array:
        x, target, grad = _common(x, target, grad)
        slope = gradient(x, target, *constants)
        return (slope * _share(grad, x.size, reduction)).astype(ctx.dtype)

    return rule


def _share(grad: jax.Array, count: int, reduction: int) -> jax.Array:
    """Return the gradient of each of ``count`` elements before the reduction."""
    return grad / max(count, 1) if reduction == 1 else grad


for _name, (_loss, _gradient) in ELEMENTWISE.items():
    register(_name, _forward(_loss), ctx=True)
    register(f"{_name}_backward", _backward(_gradient), ctx=True)


@lower("aten::binary_cross_entropy")
def _binary_cross_entropy(x: jax.Array, target: jax.Array, weight: Maybe = None, reduction: int = 1) -> jax.Array:
    wide, t = widen(x), widen(target)
    # the floor of -100 is torch's, for probabilities of exactly 0 or 1
    loss = (t - 1) * jnp.maximum(jnp.log1p(-wide), -100) - t * jnp.maximum(jnp.log(wide), -100)
    return reduce_loss(loss if weight is None else loss * widen(weight), reduction).astype(x.dtype)


@lower("aten::binary_cross_entropy_backward")
def _binary_cross_entropy_backward(
    grad: jax.Array, x: jax.Array, target: jax.Array, weight: Maybe = None, reduction: int = 1
) -> jax.Array:
    wide = widen(x)
    slope = (wide - widen(target)) / jnp.maximum((1 - wide) * wide, 1e-12)
    slope = slope if weight is None else slope * widen(weight)
    return (slope * _share(widen(grad), x.size, reduction)).astype(x.dtype)


@lower("aten::binary_cross_entropy_with_logits", ctx=True)
def _binary_cross_entropy_with_logits(
    ctx: LoweringRuleContext,
    x: jax.Array,
    target: jax.Array,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = 1,
) -> jax.Array:
    wide, t = widen(x), widen(target)
    # -log_sigmoid, without overflow
    log = jnp.log1p(jnp.exp(-jnp.abs(wide))) + jnp.maximum(-wide, 0)
    loss = (1 - t) * wide + (log if pos_weight is None else ((widen(pos_weight) - 1) * t + 1) * log)
    return reduce_loss(loss if weight is None else loss * widen(weight), reduction).astype(ctx.dtype)


def _class_axis(x: jax.Array) -> int:
    return 1 if x.ndim > 1 else 0


def _class_weights(target: jax.Array, weight: Maybe, ignore_index: int, dtype: Any) -> jax.Array:
    """Return the weight of each target's class, 0 for ignored targets."""
    is_valid = target != ignore_index
    if weight is None:
        return is_valid.astype(dtype)
    return jnp.where(is_valid, weight.astype(dtype).at[jnp.where(is_valid, target, 0)].get(mode="fill"), 0)


def _gather_targets(x: jax.Array, target: jax.Array, axis: int) -> jax.Array:
    """Return the value at each target along the axis; NaN for an invalid class, for which torch raises.

    On TPUs this is a masked sum instead of a gather. libtpu writes the operand of a gather to HBM: for a language model
    the float32 log-probabilities of the full vocabulary, which are then retained until backward. A masked sum is fused
    with the computation of the log-probabilities, which are not materialized.
    """

    def taken(x: jax.Array, places: jax.Array) -> jax.Array:
        return jnp.take_along_axis(x, places, axis, mode="clip").squeeze(axis)

    def summed(x: jax.Array, places: jax.Array) -> jax.Array:
        hit = lax.broadcasted_iota(places.dtype, x.shape, axis) == places
        return jnp.sum(jnp.where(hit, x, 0), axis)

    found = lax.platform_dependent(x, jnp.expand_dims(target, axis), tpu=summed, default=taken)
    return jnp.where((target >= 0) & (target < x.shape[axis]), found, jnp.nan)


@lower("aten::nll_loss_forward", "aten::nll_loss2d_forward", ctx=True)
def _nll_loss(
    ctx: LoweringRuleContext, x: jax.Array, target: jax.Array, weight: Maybe, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    axis, wide = _class_axis(x), widen(x)
    weights = _class_weights(target, weight, ignore_index, wide.dtype)
    picked = _gather_targets(wide, jnp.where(target == ignore_index, 0, target), axis)
    losses = jnp.where(target == ignore_index, 0, -weights * picked)
    total = jnp.sum(weights)
    out = losses if reduction == 0 else jnp.sum(losses) / (total if reduction == 1 else 1)
    # without reduction, torch returns a total weight of 0 for a batch
    total = jnp.zeros_like(total) if reduction == 0 and x.ndim > 1 else total
    return out.astype(ctx.dtype), total.astype(ctx.dtype)


@lower("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_loss_backward(
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    axis, wide = _class_axis(x), widen(grad)
    share = -_class_weights(target, weight, ignore_index, wide.dtype) * wide
    if reduction == 1:
        share = share / widen(total_weight)
    share = jnp.where(target == ignore_index, 0, share)
    classes = lax.broadcasted_iota(target.dtype, x.shape, axis)
    hit = classes == jnp.expand_dims(target, axis)
    return jnp.where(hit, jnp.expand_dims(share, axis), 0).astype(x.dtype)


@lower("aten::multi_margin_loss", static_args=("p",))
def _multi_margin_loss(
    x: jax.Array, target: jax.Array, p: int = 1, margin: Operand = 1, weight: Maybe = None, reduction: int = 1
) -> jax.Array:
    losses = _margin_losses(widen(x), target, p, margin, weight)
    return reduce_loss(losses.reshape(target.shape), reduction).astype(x.dtype)


def _margin_losses(x: jax.Array, target: jax.Array, p: int, margin: Operand, weight: Maybe) -> jax.Array:
    rows, targets = jnp.atleast_2d(x), jnp.atleast_1d(target)
    own = jnp.take_along_axis(rows, targets[:, None], 1)
    excess = jnp.maximum(convert(margin, rows.dtype) - own + rows, 0) ** p
    if weight is not None:
        excess = excess * widen(weight)[targets][:, None]
    others = lax.broadcasted_iota(targets.dtype, rows.shape, 1) != targets[:, None]
    return jnp.sum(jnp.where(others, excess, 0), 1) / rows.shape[1]


@lower("aten::multi_margin_loss_backward", static_args=("p",))
def _multi_margin_loss_backward(
    grad: jax.Array,
    x: jax.Array,
    target: jax.Array,
    p: int,
    margin: Operand,
    weight: Maybe = None,
    reduction: int = 1,
) -> jax.Array:
    losses, pull = jax.vjp(lambda x: _margin_losses(x, target, p, margin, weight), widen(x))
    share = _share(widen(grad), losses.size, reduction)
    (result,) = pull(jnp.broadcast_to(share, losses.shape))
    return result.astype(x.dtype)


def _is_target(target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (mask of the valid entries of ``target``, before the first -1; mask of the classes they name)."""
    named = jnp.cumprod(target >= 0, 1).astype(bool)
    rows = lax.broadcasted_iota(jnp.int32, target.shape, 0)
    places = jnp.where(named, target, target.shape[1])
    return named, jnp.zeros(target.shape, bool).at[rows, places].set(True, mode="drop")


def _multilabel_losses(x: jax.Array, target: jax.Array) -> jax.Array:
    named, is_target = _is_target(target)
    own = jnp.take_along_axis(x, jnp.where(named, target, 0), 1)
    excess = jnp.maximum(1 - own[:, :, None] + x[:, None, :], 0)
    counted = named[:, :, None] & ~is_target[:, None, :]
    return jnp.sum(jnp.where(counted, excess, 0), (1, 2)) / x.shape[1]


@lower("aten::multilabel_margin_loss_forward")
def _multilabel_margin_loss(x: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    rows, targets = jnp.atleast_2d(widen(x)), jnp.atleast_2d(target)
    losses = _multilabel_losses(rows, targets).reshape(x.shape[:-1])
    is_target = _is_target(targets)[1].reshape(target.shape)
    return reduce_loss(losses, reduction).astype(x.dtype), is_target.astype(x.dtype)


@lower("aten::multilabel_margin_loss_backward")
def _multilabel_margin_loss_backward(
    grad: jax.Array, x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    rows, targets = jnp.atleast_2d(widen(x)), jnp.atleast_2d(target)
    losses, pull = jax.vjp(lambda x: _multilabel_losses(x, targets), rows)
    share = _share(widen(grad), losses.size, reduction)
    (result,) = pull(jnp.broadcast_to(share, losses.shape))
    return result.reshape(x.shape).astype(x.dtype)
