"""How values are spread over the devices of a mesh, for the partitioner to keep to."""

from __future__ import annotations

import jax
from jax import lax

from torch_xla._engine.base import shardings
from torch_xla._engine.lowering.registry import lower


@lower("torch_xla::lay_out")
def _lay_out(x: jax.Array, sharding: int) -> jax.Array:
    return lax.with_sharding_constraint(x, shardings.of(sharding))
