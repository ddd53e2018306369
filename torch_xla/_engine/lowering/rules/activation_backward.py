"""Lowering rules of the gradients of activation functions, with torch's subgradients at points of discontinuity."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import Function, arithmetic, register_table, round_once
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower
from torch_xla._engine.lowering.rules.activation import gelu_cdf, gelu_tanh_argument


def _hardsigmoid_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


def _hardswish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


def _hardtanh_backward(grad: jax.Array, x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.where((x <= low) | (x >= high), 0, grad)


def _log_sigmoid_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    return grad * lax.logistic(-x)


def _mish_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    tanh = lax.tanh(jax.nn.softplus(x))
    return grad * (tanh + x * lax.logistic(x) * (1 - tanh * tanh))


def _shrink_backward(grad: jax.Array, x: jax.Array, lambd: jax.Array) -> jax.Array:
    return jnp.where((x >= -lambd) & (x <= lambd), 0, grad)


def _sigmoid_backward(grad: jax.Array, y: jax.Array) -> jax.Array:
    """Compute the gradient of sigmoid; real factors are multiplied in torch's order, as (1 - y) * y may overflow."""
    return grad * jnp.conj((1 - y) * y) if jnp.iscomplexobj(y) else grad * (1 - y) * y


def _silu_backward(grad: jax.Array, x: jax.Array) -> jax.Array:
    sigmoid = lax.logistic(x)
    return grad * (sigmoid * (1 + x * (1 - sigmoid)))  # grad * sigmoid alone may be subnormal, which XLA flushes


def _softplus_backward(grad: jax.Array, x: jax.Array, beta: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(x * beta > threshold, grad, grad * lax.logistic(x * beta))


def _tanh_backward(grad: jax.Array, y: jax.Array) -> jax.Array:
    return grad * jnp.conj(1 - y * y)


def _threshold_backward(grad: jax.Array, x: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(x <= threshold, 0, grad)


_GRADIENTS: dict[str, Function] = {
    "hardshrink_backward": _shrink_backward,
    "hardsigmoid_backward": _hardsigmoid_backward,
    "hardswish_backward": _hardswish_backward,
    "hardtanh_backward": _hardtanh_backward,
    "mish_backward": _mish_backward,
    "sigmoid_backward": _sigmoid_backward,
    "silu_backward": _silu_backward,
    "softplus_backward": _softplus_backward,
    "softshrink_backward": _shrink_backward,
    "tanh_backward": _tanh_backward,
}

register_table(arithmetic, _GRADIENTS)
register_table(round_once, {"threshold_backward": _threshold_backward})


@lower("aten::log_sigmoid_backward", ctx=True)
def _log_sigmoid_backward_without_buffer(
    context: LoweringRuleContext, grad: jax.Array, x: jax.Array, buffer: object
) -> jax.Array:
    return arithmetic(_log_sigmoid_backward)(context, grad, x)


@lower("aten::leaky_relu_backward", ctx=True)
def _leaky_relu_backward(
    context: LoweringRuleContext, grad: jax.Array, x: jax.Array, negative_slope: Operand, self_is_result: bool
) -> jax.Array:
    rule = arithmetic(lambda grad, x, slope: jnp.where(x > 0, grad, grad * slope))
    return rule(context, grad, x, negative_slope)


@lower("aten::elu_backward", ctx=True)
def _elu_backward(
    context: LoweringRuleContext,
    grad: jax.Array,
    alpha: Operand,
    scale: Operand,
    input_scale: Operand,
    is_result: bool,
    x: jax.Array,
) -> jax.Array:
    def gradient(grad: jax.Array, alpha: jax.Array, scale: jax.Array, inner: jax.Array, x: jax.Array) -> jax.Array:
        outer = alpha * scale
        slope = inner * (x + outer) if is_result else inner * outer * lax.exp(x * inner)
        return jnp.where(x <= 0, grad * slope, grad * scale)

    return arithmetic(gradient)(context, grad, alpha, scale, input_scale, x)


@lower("aten::gelu_backward", ctx=True)
def _gelu_backward(context: LoweringRuleContext, grad: jax.Array, x: jax.Array, approximate: str = "none") -> jax.Array:
    def gradient(grad: jax.Array, x: jax.Array) -> jax.Array:
        if approximate == "tanh":
            tanh = lax.tanh(gelu_tanh_argument(x))
            slope = 0.5 * (1 - tanh * tanh) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        else:
            slope = lax.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * (gelu_cdf(x, approximate) + x * slope)

    return arithmetic(gradient)(context, grad, x)


@lower("aten::glu_backward")
def _glu_backward(grad: jax.Array, x: jax.Array, dim: int) -> jax.Array:
    wide, grad = (convert(a, opmath(x.dtype)) for a in (x, grad))
    value, gate = jnp.split(wide, 2, axis=dim)
    sigmoid = lax.logistic(gate)
    grads = [grad * sigmoid, grad * value * sigmoid * (1 - sigmoid)]
    return convert(jnp.concatenate(grads, axis=dim), x.dtype)


@lower("aten::_prelu_kernel_backward", ctx=True)
def _prelu_backward(
    context: LoweringRuleContext, grad: jax.Array, x: jax.Array, weight: jax.Array
) -> tuple[jax.Array, jax.Array]:
    wide_grad, wide, wide_weight = (convert(a, opmath(x.dtype)) for a in (grad, x, weight))
    grad_x = jnp.where(wide > 0, wide_grad, wide_grad * wide_weight)
    grad_weight = jnp.where(wide > 0, 0, wide_grad * wide)
    return convert(grad_x, x.dtype), convert(grad_weight, context.dtype_of(1))


@lower("aten::rrelu_with_noise_backward", ctx=True)
def _rrelu_backward(
    context: LoweringRuleContext, grad: jax.Array, x: jax.Array, noise: jax.Array, lower_: Operand, upper: Operand,
    training: bool, self_is_result: bool,
) -> jax.Array:  # fmt: skip
    """Compute the gradient of rrelu: in training with the slopes drawn in forward, else with the mean slope."""
    if training:
        return arithmetic(jnp.multiply)(context, grad, noise)

    def gradient(grad: jax.Array, x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.where(x > 0, grad, grad * (low + high) / 2)

    return arithmetic(gradient)(context, grad, x, lower_, upper)
