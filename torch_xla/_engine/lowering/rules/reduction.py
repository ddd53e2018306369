"""Lowering rules of reductions: sum, prod, mean, var, max and min with their indices, any, all, and vector norms.

16-bit floats are reduced in float32 and rounded once, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.dims import at_least_1d, normalize_dim, normalize_dims
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower, register
from torch_xla._engine.lowering.rules.views import diagonal

Dims = int | Sequence[int] | None

#: Elements from which a CPU kernel is worth a call (docs/project/cpu_kernels.md).
_LEAST_NUMBERS = 1 << 11


def _total(function: Callable[..., jax.Array], on_bool: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a rule that converts to the output dtype, as torch's ``dtype=`` does, and then reduces."""

    def rule(
        ctx: LoweringRuleContext, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None
    ) -> jax.Array:
        x, over = convert(x, ctx.dtype), normalize_dims(dim, x.ndim)
        if x.dtype == np.bool_:
            return on_bool(x, over, keepdims=keepdim)
        return convert(function(convert(x, opmath(x.dtype)), over, keepdims=keepdim), ctx.dtype)

    return rule


def _mean(x: jax.Array, over: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jnp.sum(x, over, keepdims=keepdims) / math.prod(x.shape[d] for d in over)


def _nansum(x: jax.Array, over: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jnp.sum(jnp.where(jnp.isnan(x), jnp.zeros((), x.dtype), x), over, keepdims=keepdims)


def _full_reduction(rule: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return the rule of the overload without dims: ``sum(x, *, dtype)``."""
    return lambda ctx, x, dtype=None: rule(ctx, x, None, False, dtype)


def _average(
    ctx: LoweringRuleContext, x: jax.Array, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> jax.Array:
    # Unlike its sum, torch's mean does not round the elements to a 16-bit ``dtype=`` before adding them.
    return convert(_mean(convert(x, opmath(ctx.dtype)), normalize_dims(dim, x.ndim), keepdim), ctx.dtype)


def _sum_array(x: jax.Array, over: tuple[int, ...], keepdims: bool) -> jax.Array:
    """Compute ``jnp.sum``; sums of rows, such as the gradient of a bias, with a CPU kernel."""
    shape = tuple(1 if axis in over else size for axis, size in enumerate(x.shape) if keepdims or axis not in over)
    rows = over == tuple(range(len(over))) and len(over) < x.ndim and x.dtype == np.float32
    if not rows or x.size == 0 or not cpu_kernel_call.is_profitable(x.size, _LEAST_NUMBERS):
        return jnp.sum(x, over, keepdims=keepdims)
    together = x.reshape(-1, *x.shape[len(over) :])
    out = jax.ShapeDtypeStruct(together.shape[1:], x.dtype)
    return cpu_kernel_call.cpu_kernel_call_in_place("sum", lambda x: [jnp.sum(x, 0)], [together], [out], {})[0].reshape(
        shape
    )


_sum, _prod = _total(_sum_array, jnp.any), _total(jnp.prod, jnp.all)

register("aten::mean", _full_reduction(_average), ctx=True)
register("aten::mean.dim", _average, ctx=True)
register("aten::nansum", _total(_nansum, jnp.any), ctx=True)
register("aten::prod", _full_reduction(_prod), ctx=True)
register("aten::prod.dim_int", _prod, ctx=True)
register("aten::sum", _full_reduction(_sum), ctx=True)
register("aten::sum.dim_IntList", _sum, ctx=True)
register("aten::trace", lambda ctx, x: _sum(ctx, diagonal(x)), ctx=True)


def _logical(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def rule(ctx: LoweringRuleContext, x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        # Unlike in other reductions, [] means no dim here.
        over = () if isinstance(dim, Sequence) and not len(dim) else normalize_dims(dim, x.ndim)
        return function(x != 0, over, keepdims=keepdim).astype(ctx.dtype)

    return rule


for _name, _function in (("all", _logical(jnp.all)), ("any", _logical(jnp.any))):
    for _overload in ("", ".dim", ".dims"):
        register(f"aten::{_name}{_overload}", _function, ctx=True)


@lower("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(x: jax.Array, dim: Dims = None) -> jax.Array:
    return jnp.sum(x != 0, normalize_dims(dim, x.ndim), dtype=np.int64)


def _extreme(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda x, dim=None, keepdim=False: function(x, normalize_dims(dim, x.ndim), keepdims=keepdim)


_amax, _amin = _extreme(jnp.max), _extreme(jnp.min)


def _arg_extremum(largest: bool) -> Callable[..., jax.Array]:
    """Return the rule of argmax or argmin: the index of the first extremum, or of a nan."""
    function = lax.argmax if largest else lax.argmin

    def rule(x: jax.Array, dim: int | None = None, keepdim: bool = False) -> jax.Array:
        flat = at_least_1d(x) if dim is not None else x.reshape(-1)
        flat = flat.astype(np.uint8) if x.dtype == np.bool_ else flat
        over = 0 if dim is None else normalize_dim(dim, x.ndim)
        narrow = np.int32 if flat.shape[over] < 2**31 else np.int64
        found = function(flat, over, narrow).astype(np.int64)
        kept_shape = [1 if dim is None or d == over else n for d, n in enumerate(x.shape)]
        return found.reshape(kept_shape if keepdim else () if dim is None or x.ndim == 0 else found.shape)

    return rule


def _with_place(extreme: Callable[..., jax.Array], place: Callable[..., jax.Array]) -> Callable[..., Any]:
    return lambda x, dim, keepdim=False: (extreme(x, dim, keepdim), place(x, dim, keepdim))


register("aten::amax", _amax)
register("aten::amin", _amin)
register("aten::aminmax", lambda x, dim=None, keepdim=False: (_amin(x, dim, keepdim), _amax(x, dim, keepdim)))
register("aten::argmax", _arg_extremum(largest=True))
register("aten::argmin", _arg_extremum(largest=False))
register("aten::max", _amax)
register("aten::max.dim", _with_place(_amax, _arg_extremum(largest=True)))
register("aten::min", _amin)
register("aten::min.dim", _with_place(_amin, _arg_extremum(largest=False)))


def _variance(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """Compute (variance, mean) in two passes, in the dtype torch computes in."""
    x, over = convert(x, opmath(x.dtype)), normalize_dims(dim, x.ndim)
    mean = _mean(x, over, keepdims=True)
    count = math.prod(x.shape[d] for d in over)
    spread = jnp.sum(_modulus_squared(x - mean), over, keepdims=keepdim)
    freedom = max(count - (1 if correction is None else correction), 0)
    return spread / freedom, mean if keepdim else lax.squeeze(mean, over)


def _modulus_squared(x: jax.Array) -> jax.Array:
    return x.real * x.real + x.imag * x.imag if jnp.iscomplexobj(x) else x * x


def _moments(finish: Callable[[jax.Array], jax.Array], with_mean: bool) -> Callable[..., Any]:
    def rule(
        ctx: LoweringRuleContext, x: jax.Array, dim: Dims = None, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        variance, mean = _variance(x, dim, correction, keepdim)
        spread = convert(finish(variance), ctx.dtype)
        return (spread, convert(mean, x.dtype)) if with_mean else spread

    return rule


register("aten::std.correction", _moments(jnp.sqrt, with_mean=False), ctx=True, static_args=("correction",))
register("aten::std_mean.correction", _moments(jnp.sqrt, with_mean=True), ctx=True, static_args=("correction",))
register("aten::var.correction", _moments(lambda v: v, with_mean=False), ctx=True, static_args=("correction",))
register("aten::var_mean.correction", _moments(lambda v: v, with_mean=True), ctx=True, static_args=("correction",))


@lower("aten::logsumexp", ctx=True)
def logsumexp(ctx: LoweringRuleContext, x: jax.Array, dim: Dims, keepdim: bool = False) -> jax.Array:
    x, over = convert(x, opmath(ctx.dtype)), normalize_dims(dim, x.ndim)
    if math.prod(x.shape[d] for d in over) == 0:
        return jnp.full(ctx.shape, -np.inf, ctx.dtype)
    return convert(jax.scipy.special.logsumexp(x, over, keepdims=keepdim), ctx.dtype)


def vector_norm(x: jax.Array, p: float, over: tuple[int, ...], keepdims: bool = False) -> jax.Array:
    """Compute (sum |x|**p) ** (1/p) and its limits: p = 0 counts nonzeros, inf and -inf are max and min of |x|."""
    if p == 0:
        return jnp.sum(x != 0, over, keepdims=keepdims).astype(x.real.dtype)
    if p == 2:
        return jnp.sqrt(jnp.sum(_modulus_squared(x), over, keepdims=keepdims))
    size = jnp.abs(x)
    if math.isinf(p):
        return (jnp.max if p > 0 else jnp.min)(size, over, keepdims=keepdims)
    return jnp.sum(size if p == 1 else size**p, over, keepdims=keepdims) ** (1 / p)


@lower("aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", ctx=True, static_args=("p",))
@lower("aten::linalg_vector_norm", ctx=True, static_args=("ord",))
def norm(
    ctx: LoweringRuleContext,
    x: jax.Array,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> jax.Array:
    wide = opmath(ctx.dtype)
    wide = jnp.result_type(wide, np.complex64) if jnp.iscomplexobj(x) else wide
    return convert(
        vector_norm(convert(x, wide), 2 if p is None else p, normalize_dims(dim, x.ndim), keepdim), ctx.dtype
    )


@lower("aten::norm.Scalar", "aten::norm.ScalarOpt_dtype", ctx=True, static_args=("p",))
def norm_of_all(ctx: LoweringRuleContext, x: jax.Array, p: float | None = 2, dtype: Any = None) -> jax.Array:
    return norm(ctx, x, p)


@lower("aten::hash_tensor")
def hash_tensor(x: jax.Array, dim: Dims = None, keepdim: bool = False, mode: int = 0) -> jax.Array:
    """Compute the exclusive or of all elements as 64 bits: of float64, or of the sign-extended integer."""
    wide = lax.bitcast_convert_type(x.astype(np.float64), np.uint64) if jnp.issubdtype(x.dtype, jnp.floating) else x
    over = normalize_dims(dim, x.ndim)
    bits = lax.reduce(wide.astype(np.uint64), np.uint64(0), lax.bitwise_xor, over)
    return jnp.expand_dims(bits, over) if keepdim else bits
