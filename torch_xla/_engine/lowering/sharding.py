"""What values are to be for the compiler: spread over a mesh in some way, or computed apart from others."""

from __future__ import annotations

import jax
from jax import lax
from jax.experimental.shard_alike import shard_alike

from torch_xla._engine.base import shardings
from torch_xla._engine.lowering.registry import lower


@lower("torch_xla::lay_out")
def _lay_out(x: jax.Array, sharding: int) -> jax.Array:
    return lax.with_sharding_constraint(x, shardings.of(sharding))


@lower("torch_xla::shard_alike")
def _shard_alike(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(shard_alike(*inputs))


@lower("torch_xla::optimization_barrier")
def _optimization_barrier(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(lax.optimization_barrier(tuple(inputs)))
