"""Lowering rules of cumulative operators: cumsum, cumprod, logcumsumexp, cummax, cummin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.dims import at_least_1d, normalize_dim
from torch_xla._engine.lowering.registry import LoweringRuleContext, register
from torch_xla._engine.lowering.rules.binary import logaddexp

Pair = tuple[jax.Array, jax.Array]


def _cumulative_rule(function: Callable[[jax.Array, int], jax.Array]) -> Callable[..., jax.Array]:
    """Return a rule that converts the input to the output dtype, and scans in the dtype torch computes in."""

    def rule(ctx: LoweringRuleContext, x: jax.Array, dim: int, dtype: Any = None) -> jax.Array:
        wide = at_least_1d(convert(convert(x, ctx.dtype), opmath(ctx.dtype)))
        return convert(function(wide, normalize_dim(dim, x.ndim)), ctx.dtype).reshape(x.shape)

    return rule


def _log_cum_sum_exp(x: jax.Array, dim: int) -> jax.Array:
    # lax.cumlogsumexp supports real numbers only.
    return lax.associative_scan(logaddexp, x, axis=dim) if jnp.iscomplexobj(x) else lax.cumlogsumexp(x, dim)


def _running_extreme(beats: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., Pair]:
    """Return the rule of cummax or cummin: the index of the last of equal elements; after a nan, of the latest nan."""

    def later(a: Pair, b: Pair) -> Pair:
        taken = beats(b[0], a[0])
        if dtypes.is_inexact(a[0].dtype):
            taken = jnp.isnan(b[0]) | (taken & ~jnp.isnan(a[0]))
        return jnp.where(taken, b[0], a[0]), jnp.where(taken, b[1], a[1])

    def rule(x: jax.Array, dim: int) -> Pair:
        values, dim = at_least_1d(x), normalize_dim(dim, x.ndim)
        places = lax.broadcasted_iota(np.int32, values.shape, dim)
        values, places = lax.associative_scan(later, (values, places), axis=dim) if x.size else (values, places)
        return values.reshape(x.shape), places.astype(np.int64).reshape(x.shape)

    return rule


register("aten::_logcumsumexp", _cumulative_rule(_log_cum_sum_exp), ctx=True)
register("aten::cummax", _running_extreme(lax.ge))
register("aten::cummin", _running_extreme(lax.le))
register("aten::cumprod", _cumulative_rule(lax.cumprod), ctx=True)
register("aten::cumsum", _cumulative_rule(lax.cumsum), ctx=True)
register("aten::logcumsumexp", _cumulative_rule(_log_cum_sum_exp), ctx=True)
