"""Helpers shared by the rules of neural-network operators."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xla._engine.lowering.cast import opmath


def per_dim(values: Sequence[int], n: int) -> tuple[int, ...]:
    """Return one value per spatial dimension (``n``); torch allows a single value for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def widen(x: jax.Array) -> jax.Array:
    """Convert ``x`` to the dtype torch computes in."""
    return x.astype(opmath(x.dtype))


def reduce_loss(loss: jax.Array, reduction: int) -> jax.Array:
    """Reduce a loss by torch's reduction code: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return loss
    return jnp.mean(loss) if reduction == 1 else jnp.sum(loss)
