"""Lowering rules of random numbers of continuous distributions: rand, randn, uniform, normal, exponential, gamma.

Each call has a separate PRNG key, so that the numbers of one operator do not depend on other operators.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower


def _unit(context: LoweringRuleContext, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Draw uniform numbers in [0, 1), in ``dtype`` itself: rounding to 16 bits afterwards could return 1."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.complex(*jax.random.uniform(context.key(), (2, *shape), np.finfo(dtype).dtype))
    return jax.random.uniform(context.key(), shape, dtype)


def _open_unit(context: LoweringRuleContext) -> jax.Array:
    """Draw uniform numbers in (0, 1), in the shape of the first result and a dtype suitable for logarithms."""
    dtype = opmath(context.dtype) if jnp.issubdtype(context.dtype, jnp.inexact) else np.dtype(np.float32)
    # A grid shifted by half a step from 0 contains neither end, and its numbers are evenly spaced.
    return jax.random.uniform(context.key(), context.shape, dtype) + float(np.finfo(dtype).eps) / 2


def _standard_normal(context: LoweringRuleContext) -> jax.Array:
    return jax.random.normal(context.key(), context.shape, opmath(context.dtype))


@lower(
    "aten::rand",
    "aten::rand.generator",
    "aten::rand_like",
    "aten::rand_like.generator",
    random=True,
    elementwise_random=True,
)
def _rand(context: LoweringRuleContext, *_: Any) -> jax.Array:
    return _unit(context, context.shape, context.dtype)


@lower(
    "aten::randn",
    "aten::randn.generator",
    "aten::randn_like",
    "aten::randn_like.generator",
    random=True,
    elementwise_random=True,
)
def _randn(context: LoweringRuleContext, *_: Any) -> jax.Array:
    return convert(_standard_normal(context), context.dtype)


@lower("aten::uniform", random=True, elementwise_random=True)
def _uniform(
    context: LoweringRuleContext, x: jax.Array, low: float = 0.0, high: float = 1.0, generator: Any = None
) -> jax.Array:
    compute = opmath(context.dtype)
    first = complex(low, low) if context.torch_dtype.is_complex else low  # of the real and the imaginary part
    scaled = first + (high - low) * convert(_unit(context, context.shape, context.dtype), compute)
    return convert(scaled, context.dtype)


@lower("aten::normal_functional", random=True, elementwise_random=True)
def _normal_like(
    context: LoweringRuleContext, x: jax.Array, mean: float = 0.0, std: float = 1.0, generator: Any = None
) -> jax.Array:
    return convert(mean + std * _standard_normal(context), context.dtype)


@lower(
    "aten::normal.Tensor_Tensor",
    "aten::normal.Tensor_float",
    "aten::normal.float_Tensor",
    random=True,
    elementwise_random=True,
)
@lower("aten::normal.float_float", random=True, elementwise_random=True)
def _normal(context: LoweringRuleContext, mean: Operand = 0.0, std: Operand = 1.0, *_: Any) -> jax.Array:
    compute = opmath(context.dtype)
    return convert(convert(mean, compute) + convert(std, compute) * _standard_normal(context), context.dtype)


@lower("aten::log_normal", random=True, elementwise_random=True)
def _log_normal(
    context: LoweringRuleContext, x: jax.Array, mean: float = 1.0, std: float = 2.0, generator: Any = None
) -> jax.Array:
    return convert(lax.exp(mean + std * _standard_normal(context)), context.dtype)


@lower("aten::exponential", random=True, elementwise_random=True)
def _exponential(context: LoweringRuleContext, x: jax.Array, lambd: float = 1.0, generator: Any = None) -> jax.Array:
    return convert(-lax.log(_open_unit(context)) / lambd, context.dtype)


@lower("aten::geometric", random=True, elementwise_random=True)
def _geometric(context: LoweringRuleContext, x: jax.Array, p: float, generator: Any = None) -> jax.Array:
    return convert(jnp.ceil(lax.log(_open_unit(context)) / math.log1p(-p)), context.dtype)


@lower("aten::cauchy", random=True, elementwise_random=True)
def _cauchy(
    context: LoweringRuleContext, x: jax.Array, median: float = 0.0, sigma: float = 1.0, generator: Any = None
) -> jax.Array:
    return convert(median + sigma * lax.tan(math.pi * (_open_unit(context) - 0.5)), context.dtype)


@lower("aten::_standard_gamma", random=True)
def _standard_gamma(context: LoweringRuleContext, alpha: jax.Array, generator: Any = None) -> jax.Array:
    alpha = convert(alpha, opmath(context.dtype))
    return convert(jax.random.gamma(context.jax_key(), alpha, dtype=alpha.dtype), context.dtype)


@lower("aten::_sample_dirichlet", random=True)
def _sample_dirichlet(context: LoweringRuleContext, alpha: jax.Array, generator: Any = None) -> jax.Array:
    alpha = convert(alpha, opmath(context.dtype))
    return convert(jax.random.dirichlet(context.jax_key(), alpha, dtype=alpha.dtype), context.dtype)


@lower("aten::_standard_gamma_grad")
def _standard_gamma_grad(alpha: jax.Array, sample: jax.Array) -> jax.Array:
    return lax.random_gamma_grad(*jnp.broadcast_arrays(alpha, sample))


@lower("aten::rrelu_with_noise_functional", random=True)
def _rrelu(
    context: LoweringRuleContext, x: jax.Array, noise: jax.Array, low: Operand = 0.125, high: Operand = 1 / 3,
    training: bool = False, generator: Any = None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Compute rrelu: leaky_relu with a random slope per element, or the mean slope; also return the slopes as noise.

    The noise is 1 for positive elements.
    """
    wide, low, high = (convert(a, opmath(context.dtype)) for a in (x, low, high))
    if not training:
        return convert(jnp.where(wide > 0, wide, wide * (low + high) / 2), x.dtype), noise
    slope = jnp.where(wide > 0, 1, low + (high - low) * _unit(context, x.shape, wide.dtype))
    return convert(wide * slope, x.dtype), convert(slope, noise.dtype)
