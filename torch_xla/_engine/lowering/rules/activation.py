"""Lowering rules of activation functions; their gradients are in activation_backward.py."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.elementwise import Function, arithmetic, register_table, round_once
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower


def _celu(x: jax.Array, alpha: jax.Array) -> jax.Array:
    return _elu(x, alpha, jnp.ones_like(alpha), 1 / alpha)


def _elu(x: jax.Array, alpha: jax.Array, scale: jax.Array, input_scale: jax.Array) -> jax.Array:
    return jnp.where(x <= 0, lax.expm1(x * input_scale) * (alpha * scale), x * scale)


def _hardshrink(x: jax.Array, lambd: jax.Array) -> jax.Array:
    return jnp.where((x >= -lambd) & (x <= lambd), 0, x)


def _hardsigmoid(x: jax.Array) -> jax.Array:
    return jnp.clip(x + 3, 0, 6) / 6


def _hardtanh(x: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.maximum(x, low), high)


def _leaky_relu(x: jax.Array, slope: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, x * slope)


def _softplus(x: jax.Array, beta: jax.Array, threshold: jax.Array) -> jax.Array:
    return jnp.where(x * beta > threshold, x, lax.log1p(lax.exp(x * beta)) / beta)


def _softshrink(x: jax.Array, lambd: jax.Array) -> jax.Array:
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))


def _threshold(x: jax.Array, threshold: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.where(x <= threshold, value, x)


_ACTIVATIONS: dict[str, Function] = {
    "_prelu_kernel": _leaky_relu,
    "celu": _celu,
    "elu": _elu,
    "hardshrink": _hardshrink,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky_relu,
    "mish": lambda x: x * lax.tanh(jax.nn.softplus(x)),
    "relu6": lambda x: jnp.clip(x, 0, 6),
    "selu": jax.nn.selu,
    "silu": lambda x: x * lax.logistic(x),
    "softplus": _softplus,
    "softshrink": _softshrink,
}

register_table(arithmetic, _ACTIVATIONS)
register_table(round_once, {"relu": lambda x: jnp.maximum(x, 0), "threshold": _threshold})


@lower("aten::gelu")
def _gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    wide = convert(x, opmath(x.dtype))
    return convert(wide * gelu_cdf(wide, approximate), x.dtype)


def gelu_cdf(x: jax.Array, approximate: str) -> jax.Array:
    """Return the factor of ``x`` in gelu: the normal cumulative distribution function, or its tanh approximation."""
    if approximate == "tanh":
        return 0.5 * (1 + lax.tanh(gelu_tanh_argument(x)))
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def gelu_tanh_argument(x: jax.Array) -> jax.Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


@lower("aten::glu")
def _glu(x: jax.Array, dim: int = -1) -> jax.Array:
    wide = convert(x, opmath(x.dtype))
    value, gate = jnp.split(wide, 2, axis=dim)
    return convert(value * lax.logistic(gate), x.dtype)


@lower("aten::log_sigmoid_forward", ctx=True)
def _log_sigmoid_forward(context: LoweringRuleContext, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log_sigmoid, and the buffer that the CPU's backward reads: exp(-abs(x)), or empty if so declared."""
    wide = convert(x, opmath(x.dtype))
    decay = lax.exp(-jnp.abs(wide))
    output = convert(jnp.minimum(wide, 0) - lax.log1p(decay), x.dtype)
    shape, dtype = context.out_specs[1][0], context.dtype_of(1)
    return output, convert(decay, dtype) if shape == x.shape else jnp.zeros(shape, dtypes.storage_numpy_dtype(dtype))
