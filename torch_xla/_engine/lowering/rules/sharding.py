"""What values are to be for the compiler: spread over a mesh in some way, or computed apart from others."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat.shard_alike import shard_alike
from torch_xla._engine.lowering.registry import lower


@lower("torch_xla::reshard")
def _reshard(x: jax.Array, sharding: int) -> jax.Array:
    return lax.with_sharding_constraint(x, sharding_ids.sharding_from_id(sharding))


@lower("torch_xla::to_manual", "torch_xla::from_manual")
def _manual(x: jax.Array, sharding: int, shape: list[int], transposed: bool) -> jax.Array:
    """compilation/manual_sharding.py computes them where a graph becomes a program; elsewhere there are no devices with parts."""
    raise NotImplementedError("manual sharding is there in recorded graphs only, not in functions of jax")


@lower("torch_xla::shard_alike")
def _shard_alike(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(shard_alike(*inputs))


@lower("torch_xla::to_memory_kind")
def _to_memory_kind_rule(x: jax.Array, host: bool) -> jax.Array:
    return jax.device_put(x, jax.memory.Space.Host if host else jax.memory.Space.Device)


@lower("torch_xla::optimization_barrier")
def _optimization_barrier(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(lax.platform_dependent(*inputs, cpu=_as_if_chosen, default=lambda *xs: lax.optimization_barrier(xs)))


def _as_if_chosen(*values: jax.Array) -> tuple[jax.Array, ...]:
    """The values, of which XLA cannot tell what they are before all of them are there.

    XLA's CPU compiler (jaxlib 0.10.2) drops barriers before it looks for computations that are there twice: nothing
    would be computed again. It does not know that a square has the remainder 0 or 1 of 4.
    """
    bits = [_first_bits(x) for x in values if x.size > 0]
    if not bits:
        return values
    total = functools.reduce(operator.add, bits)
    return lax.cond((total * total) & 3 < 2, lambda *xs: xs, lambda *xs: tuple(map(jnp.zeros_like, xs)), *values)


def _first_bits(x: jax.Array) -> jax.Array:
    first = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
    real = first.real if jnp.iscomplexobj(first) else first
    return lax.bitcast_convert_type(real.astype(jnp.float32), jnp.int32)
