"""Helpers that several families of neural-network rules share."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torch_xla._engine.lowering.cast import opmath


def per_dim(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One value for each of ``n`` spatial dimensions; torch allows one for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


def widen(x: jax.Array) -> jax.Array:
    """``x`` in the dtype torch computes in."""
    return x.astype(opmath(x.dtype))


def reduce_loss(loss: jax.Array, reduction: int) -> jax.Array:
    """torch's reduction codes: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return loss
    return jnp.mean(loss) if reduction == 1 else jnp.sum(loss)
