"""Writes through views: computes the base tensor after a view of it was written, with one inverse per view op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.registry import RULES, LoweringRuleContext, scalar_dtype
from torch_xla._engine.lowering.rules.slice_scatter import insert_slice
from torch_xla._engine.lowering.scatter_target import scatter_target

__all__ = ["scatter_through_view"]

#: (base, value of the view, arguments of the view op after the first, index of the result) -> new base
Inverse = Callable[[jax.Array, jax.Array, Sequence[Any], int], jax.Array]


def _reshape(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    return value.reshape(base.shape)


def _expand(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    # Elements that share a position are all equal, otherwise the recorder has raised.
    return (
        value.reshape(base.shape)
        if value.size == base.size
        else _scatter_by_index("aten::expand", base, value, args, out)
    )


def _rule(name: str) -> Inverse:
    """Return the inverse that torch provides as an op: ``x_scatter(base, value, *args)``."""

    def inverse(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
        result: jax.Array = RULES[name].function(base, value, *args)
        return result

    return inverse


def _permute(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    dims = [d % base.ndim for d in args[0]]
    return value.transpose(np.argsort(dims))


def _view_dtype(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    return _apply_same_op(RULES["aten::view.dtype"], value, dtypes.torch_dtype_of_storage(base.dtype), base)


def _apply_same_op(rule: Any, value: jax.Array, argument: Any, base: jax.Array) -> jax.Array:
    context = LoweringRuleContext(rule.name, [(tuple(base.shape), dtypes.torch_dtype_of_storage(base.dtype))])
    result: jax.Array = rule.function(context, value, argument) if rule.ctx else rule.function(value, argument)
    return result


def _split(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    return insert_slice(base, value, args[1] % base.ndim, args[0] * out)


def _split_with_sizes(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    return insert_slice(base, value, args[1] % base.ndim, sum(args[0][:out]))


def _unbind(base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    dim = args[0] % base.ndim
    return insert_slice(base, jnp.expand_dims(value, dim), dim, out)


_INVERSES: dict[str, Inverse] = {
    "aten::_conj": lambda base, value, args, out: jnp.conj(value),
    "aten::_neg_view": lambda base, value, args, out: -value,
    "aten::_reshape_alias": _reshape,
    "aten::alias": _reshape,
    "aten::as_strided": _rule("aten::as_strided_scatter"),
    "aten::detach": _reshape,
    "aten::diagonal": _rule("aten::diagonal_scatter"),
    "aten::expand": _expand,
    "aten::lift_fresh": _reshape,
    "aten::permute": _permute,
    "aten::select.int": _rule("aten::select_scatter"),
    "aten::slice.Tensor": _rule("aten::slice_scatter"),
    "aten::split.Tensor": _split,
    "aten::split_with_sizes": _split_with_sizes,
    "aten::squeeze": _reshape,
    "aten::squeeze.dim": _reshape,
    "aten::squeeze.dims": _reshape,
    "aten::t": lambda base, value, args, out: value.T,
    "aten::transpose.int": lambda base, value, args, out: jnp.swapaxes(value, args[0], args[1]) if base.ndim else value,
    "aten::unbind.int": _unbind,
    "aten::unsqueeze": _reshape,
    "aten::view": _reshape,
    "aten::view.dtype": _view_dtype,
    "aten::view_as_complex": lambda base, value, args, out: jnp.stack([value.real, value.imag], axis=-1),
    "aten::view_as_real": lambda base, value, args, out: lax.complex(value[..., 0], value[..., 1]),
}


def _scatter_by_index(name: str, base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    """Invert any other view that preserves elements by applying it to the element positions, once, on the host."""
    with jax.ensure_compile_time_eval():
        positions = jnp.arange(base.size, dtype=jnp.int64).reshape(base.shape)
        rule = RULES[name]
        if rule.ctx:
            context = LoweringRuleContext(name, [(tuple(value.shape), scalar_dtype(int))])
            viewed = rule.function(context, positions, *args)
        else:
            viewed = rule.function(positions, *args)
        flat = np.asarray(viewed[out] if isinstance(viewed, (list, tuple)) else viewed).ravel()
    return scatter_target(base.ravel()).at[flat].set(value.ravel()).reshape(base.shape)


def scatter_through_view(name: str, base: jax.Array, value: jax.Array, args: Sequence[Any], out: int) -> jax.Array:
    """Return ``base`` after writing ``value`` to its view, result ``out`` of the view op ``name`` with ``args``."""
    inverse = _INVERSES.get(name)
    return inverse(base, value, args, out) if inverse else _scatter_by_index(name, base, value, args, out)
