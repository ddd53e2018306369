"""``shard_alike``: constrain two arrays to have equal shardings, which the compiler chooses.

jax has ``jax.experimental.shard_alike`` until 0.11.1. For later releases this module defines a primitive on jax's
public interface that lowers to the same operation: Shardy's ``sdy.sharding_group``.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Pair = tuple[jax.Array, jax.Array]

_group_ids = itertools.count()
_alike_p = Primitive("torch_xla_shard_alike")
_alike_p.multiple_results = True


def _bind(x: jax.Array, y: jax.Array) -> Pair:
    if x.shape != y.shape:
        raise ValueError(f"shard_alike: the shapes differ: {x.shape} and {y.shape}")
    first, second = _alike_p.bind(x, y)
    return first, second


_compiled = jax.jit(_bind)
_alike_p.def_impl(lambda x, y: list(_compiled(x, y)))
_alike_p.def_abstract_eval(lambda x, y: [x, y])


def _differentiate(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Shard two tangents alike if both are nonzero; a zero tangent has no sharding."""
    out = _bind(*primals)
    if any(isinstance(tangent, ad.Zero) for tangent in tangents):
        return out, tuple(tangents)
    return out, _bind(*tangents)


def _transpose(cotangents: tuple[Any, ...], x: Any, y: Any) -> tuple[Any, ...]:
    if any(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return tuple(cotangents)
    return _bind(*cotangents)


def _batch(arrays: tuple[Any, ...], dims: tuple[int | None, ...]) -> tuple[Pair, tuple[int, int]]:
    """Move the batch dimension of both arrays to the front: shardings are compared dimension by dimension."""
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    first, second = (
        jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    )
    return _bind(first, second), (0, 0)


def _lower(ctx: mlir.LoweringRuleContext, x: Any, y: Any) -> list[Any]:
    """Lower to a Shardy group, or to a GSPMD annotation if the user has disabled Shardy."""
    from jaxlib.mlir.dialects import sdy, stablehlo

    group = next(_group_ids)
    if getattr(jax.config, "jax_use_shardy_partitioner", True):
        sdy.sharding_group(x, group)
        sdy.sharding_group(y, group)
        return [x, y]
    marked = [stablehlo.CustomCallOp([v.type], [v], "Sharding", has_side_effect=True) for v in (x, y)]
    for call in marked:
        call.attributes["mhlo.sharding"] = mlir.ir.StringAttr.get(f"{{unknown shard_as {group}}}")
    return [call.result for call in marked]


ad.primitive_jvps[_alike_p] = _differentiate
ad.primitive_transposes[_alike_p] = _transpose
batching.primitive_batchers[_alike_p] = _batch
mlir.register_lowering(_alike_p, _lower)


def find_shard_alike() -> Callable[[jax.Array, jax.Array], Pair]:
    """Return jax's ``shard_alike`` if this jax has it, else the one of this module."""
    try:
        found = importlib.import_module("jax.experimental.shard_alike").shard_alike
    except ImportError:
        return _bind
    return cast("Callable[[jax.Array, jax.Array], Pair]", found)


shard_alike = find_shard_alike()
own_shard_alike = _bind
