"""Lowering rules of discrete random numbers: bernoulli, dropout, randint, randperm, poisson, binomial, multinomial."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower


def _coins(context: LoweringRuleContext, p: jax.Array | float, shape: tuple[int, ...]) -> jax.Array:
    """Draw booleans that are True with probability ``p``."""
    # With a Python float, jax would draw 64-bit numbers to compare it with.
    p = convert(p, np.dtype(np.float32) if isinstance(p, float) else opmath(p.dtype))
    return jax.random.bernoulli(context.key(), p, shape)


@lower("aten::bernoulli", random=True, elementwise_random=True)
def _bernoulli(context: LoweringRuleContext, p: jax.Array, generator: Any = None) -> jax.Array:
    return convert(_coins(context, p, context.shape), context.dtype)


@lower("aten::bernoulli.Tensor", "aten::bernoulli.p", random=True, elementwise_random=True)
def _bernoulli_like(
    context: LoweringRuleContext, x: jax.Array, p: jax.Array | float, generator: Any = None
) -> jax.Array:
    return convert(_coins(context, p, context.shape), context.dtype)


@lower("aten::native_dropout", random=True, elementwise_random=True)
def _native_dropout(
    context: LoweringRuleContext, x: jax.Array, p: float, train: bool | None
) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return x, jnp.ones(x.shape, np.bool_)
    mask = _coins(context, 1.0 - p, x.shape)
    return _masked_scale(x, mask, 1 / (1 - p) if p < 1 else 0.0), mask


@lower("aten::native_dropout_backward", ctx=True)
def _native_dropout_backward(context: LoweringRuleContext, grad: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    return _masked_scale(convert(grad, context.dtype), mask, scale)


@lower("aten::_masked_scale")
def _masked_scale(x: jax.Array, mask: jax.Array, scale: float) -> jax.Array:
    # A product instead of a select: like torch, it propagates the nan of a dropped element.
    wide = convert(x, opmath(x.dtype))
    return convert(wide * jnp.where(mask, convert(scale, wide.dtype), 0), x.dtype)


def _random_integers(context: LoweringRuleContext, low: int, high: int) -> jax.Array:
    """Draw integers in [low, high), in 32 bits if they suffice."""
    small = np.iinfo(np.int32)
    dtype = np.int32 if small.min <= low and high <= small.max else np.int64
    # An end of 2**63 exceeds int64 by one; randint accepts it as uint64.
    bounds = np.int64(low), np.uint64(high) if high > np.iinfo(np.int64).max else np.int64(high)
    return convert(jax.random.randint(context.key(), context.shape, *bounds, dtype), context.dtype)


def _end(dtype: np.dtype) -> int:
    """Return the exclusive upper bound of random_() for ``dtype``; for floats, up to which all integers are exact."""
    if dtypes.is_inexact(dtype):
        return int(2 / torch.finfo(dtypes.torch_dtype_of_storage(dtype)).eps) + 1
    return 2 if dtype == np.bool_ else min(np.iinfo(dtype).max, np.iinfo(np.int64).max) + 1


@lower("aten::random", random=True, elementwise_random=True)
def _random(context: LoweringRuleContext, x: jax.Array, generator: Any = None) -> jax.Array:
    return _random_integers(context, 0, _end(context.dtype))


@lower("aten::random.from", random=True, elementwise_random=True)
def _random_from(
    context: LoweringRuleContext, x: jax.Array, low: int, high: int | None, generator: Any = None
) -> jax.Array:
    return _random_integers(context, low, _end(context.dtype) if high is None else high)


@lower("aten::random.to", random=True, elementwise_random=True)
def _random_to(context: LoweringRuleContext, x: jax.Array, high: int, generator: Any = None) -> jax.Array:
    return _random_integers(context, 0, high)


@lower("aten::randint", "aten::randint.generator", random=True, elementwise_random=True)
def _randint(context: LoweringRuleContext, high: int, *_: Any) -> jax.Array:
    return _random_integers(context, 0, high)


@lower("aten::randint.low", "aten::randint.low_generator", random=True, elementwise_random=True)
def _randint_low(context: LoweringRuleContext, low: int, high: int, *_: Any) -> jax.Array:
    return _random_integers(context, low, high)


@lower("aten::randint_like", "aten::randint_like.generator", random=True, elementwise_random=True)
def _randint_like(context: LoweringRuleContext, x: jax.Array, high: int, *_: Any) -> jax.Array:
    return _random_integers(context, 0, high)


@lower("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype", random=True, elementwise_random=True)
def _randint_like_low(context: LoweringRuleContext, x: jax.Array, low: int, high: int, *_: Any) -> jax.Array:
    return _random_integers(context, low, high)


@lower("aten::randint_like.Tensor", "aten::randint_like.Tensor_generator", random=True, elementwise_random=True)
def _randint_like_tensor(context: LoweringRuleContext, x: jax.Array, high: jax.Array, *_: Any) -> jax.Array:
    drawn = jax.random.randint(context.key(), context.shape, 0, convert(high, np.dtype(np.int64)), np.int64)
    return convert(drawn, context.dtype)


@lower("aten::randperm", "aten::randperm.generator", random=True)
def _randperm(context: LoweringRuleContext, n: int, *_: Any) -> jax.Array:
    return convert(jax.random.permutation(context.jax_key(), n), context.dtype)


@lower("aten::poisson", random=True)
def _poisson(context: LoweringRuleContext, rate: jax.Array, generator: Any = None) -> jax.Array:
    rate = convert(rate, opmath(context.dtype))
    return convert(jax.random.poisson(context.jax_key(), rate, dtype=np.int64), context.dtype)


@lower("aten::binomial", random=True)
def _binomial(context: LoweringRuleContext, count: jax.Array, p: jax.Array, generator: Any = None) -> jax.Array:
    count, p = (convert(a, opmath(context.dtype)) for a in (count, p))
    return convert(jax.random.binomial(context.jax_key(), count, p, dtype=p.dtype), context.dtype)


@lower("aten::multinomial", random=True)
def _multinomial(
    context: LoweringRuleContext, weights: jax.Array, num_samples: int, replacement: bool = False, generator: Any = None
) -> jax.Array:
    weights = convert(weights, opmath(weights.dtype))
    draw = _with_replacement if replacement or num_samples == 1 else _without_replacement
    return draw(context, weights, num_samples).astype(np.int64)


def _with_replacement(context: LoweringRuleContext, weights: jax.Array, count: int) -> jax.Array:
    """Sample by inversion: the first category whose cumulative weight exceeds a uniform share of the total."""
    cumulative = jnp.cumsum(weights, axis=-1)
    total = cumulative[..., -1:]
    share = jax.random.uniform(context.key(), context.shape, weights.dtype) * total
    share = jnp.minimum(share, jnp.nextafter(total, jnp.zeros_like(total)))  # rounding must not reach the total

    def search(cumulative: jax.Array, share: jax.Array) -> jax.Array:
        return jnp.searchsorted(cumulative, share, side="right")

    places = (jax.vmap(search) if weights.ndim == 2 else search)(cumulative, share)
    # For invalid weights, for which torch raises after reading them, the result must still be a valid category.
    return jnp.minimum(places, weights.shape[-1] - 1)


def _without_replacement(context: LoweringRuleContext, weights: jax.Array, count: int) -> jax.Array:
    """Sample the first categories of an exponential race with these rates."""
    times = jax.random.exponential(context.key(), weights.shape, weights.dtype)
    rates = jnp.where(weights > 0, weights / jnp.maximum(times, np.finfo(weights.dtype).tiny), -1)
    return jax.lax.top_k(rates, count)[1]
