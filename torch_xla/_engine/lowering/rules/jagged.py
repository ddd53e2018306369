"""Lowering rules of jagged nested tensors: rows of several sequences, one after the other, and padded batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand, lower


def _require_one(offsets: Sequence[jax.Array]) -> jax.Array:
    if len(offsets) != 1:
        raise NotImplementedError(f"nested tensors: one ragged dimension is supported, got {len(offsets)}")
    return offsets[0].astype(np.int32)


@lower("aten::_jagged_to_padded_dense_forward", ctx=True)
def _pad_sequences(
    ctx: LoweringRuleContext, values: jax.Array, offsets: Sequence[jax.Array], lengths: Any, padding: Operand = 0.0
) -> jax.Array:
    """Pad, or trim, each sequence of ``values`` [rows, ...] to the length of ``lengths``."""
    bounds = _require_one(offsets)
    place = lax.iota(np.int32, ctx.out_specs[0][0][1])
    rows = bounds[:-1, None] + place
    is_row = rows < bounds[1:, None]
    filler = convert(padding, values.dtype)
    if values.shape[0] == 0:
        return jnp.full(ctx.out_specs[0][0], filler, values.dtype)
    found = values[jnp.where(is_row, rows, 0)]
    return jnp.where(is_row.reshape(*is_row.shape, *[1] * (values.ndim - 1)), found, filler)


@lower("aten::_padded_dense_to_jagged_forward", ctx=True)
def _join_sequences(
    ctx: LoweringRuleContext, dense: jax.Array, offsets: Sequence[jax.Array], total: Any = None
) -> jax.Array:
    """Concatenate the sequences of ``dense`` [batch, length, ...] without their padding; missing rows are zeros."""
    bounds = _require_one(offsets)
    row = lax.iota(np.int32, ctx.out_specs[0][0][0])
    if 0 in dense.shape[:2]:
        return jnp.zeros(ctx.out_specs[0][0], dense.dtype)
    batch = jnp.clip(jnp.searchsorted(bounds, row, side="right").astype(np.int32) - 1, 0, dense.shape[0] - 1)
    place = row - bounds[batch]
    is_row = (place < dense.shape[1]) & (row < bounds[-1])
    found = dense[batch, jnp.where(is_row, place, 0)]
    return jnp.where(is_row.reshape(-1, *[1] * (dense.ndim - 2)), found, jnp.zeros((), dense.dtype))
