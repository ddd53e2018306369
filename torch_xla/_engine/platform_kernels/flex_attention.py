"""Flexible attention: arbitrary functions of the scores and a mask, computed from positions.

The scores are materialized for one block of query rows at a time, and recomputed for the gradient. ``score_mod`` and
``mask_mod`` are functions of scalars, as in torch; jax.vmap applies them to a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.rules.attention import BLOCK_ELEMENTS, contract

#: Rows per block below which smaller blocks save little memory; each block reads all keys and values.
_LEAST_ROWS = 128

Modification = Callable[..., jax.Array]


@dataclass(frozen=True, slots=True)
class FlexAttention:
    """One call: ``score_mod(score, batch, head, row, column, *buffers)``; ``mask_mod`` has no score, else the same."""

    scale: float
    score_mod: Modification
    mask_mod: Modification

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        score_buffers: Sequence[jax.Array],
        mask_buffers: Sequence[jax.Array],
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the attention output, and the log-sum-exp and the maximum of each row's scores, in units of log(2).

        Arrays are [batch, head, row, ...]; query heads form groups that share a key and value head. A batch of one key
        and value is shared.
        """
        key, value = (jnp.broadcast_to(x, (query.shape[0], *x.shape[1:])) for x in (key, value))
        n = _count_blocks(query, key)
        rows = -(-query.shape[2] // n)
        padded = jnp.pad(query, [(0, 0), (0, 0), (0, n * rows - query.shape[2]), (0, 0)])
        blocks = jnp.moveaxis(padded.reshape(*query.shape[:2], n, rows, -1), 2, 0)

        @jax.checkpoint
        def block(
            q: jax.Array, number: jax.Array, k: jax.Array, v: jax.Array, *buffers: jax.Array
        ) -> tuple[jax.Array, ...]:
            # a padded row has the position of the last one: no index is out of range
            positions = jnp.minimum(number * rows + lax.iota(np.int32, rows), query.shape[2] - 1)
            own, masks = buffers[: len(score_buffers)], buffers[len(score_buffers) :]
            return self._block(q, k, v, positions, own, masks)

        def step(_: None, x: tuple[jax.Array, jax.Array]) -> tuple[None, tuple[jax.Array, ...]]:
            return None, block(*x, key, value, *score_buffers, *mask_buffers)

        _, found = lax.scan(step, None, (blocks, lax.iota(np.int32, n)))
        out, sums, top = (_join(x, query.shape[2]) for x in found)
        return out, sums / math.log(2), lax.stop_gradient(top) / math.log(2)

    def _block(
        self, q: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array, own: Sequence[jax.Array],
        masks: Sequence[jax.Array],
    ) -> tuple[jax.Array, ...]:  # fmt: skip
        dtype = np.dtype(jnp.promote_types(q.dtype, np.float32))
        grouped = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
        scores = contract("bghld,bgsd->bghls", grouped, k).reshape(*q.shape[:3], k.shape[2]) * dtype.type(self.scale)
        batch, head, columns = (lax.iota(np.int32, size) for size in (*q.shape[:2], k.shape[2]))
        modified = _over_positions(self.score_mod, True)(scores, batch, head, rows, columns, *own).astype(dtype)
        allowed = _over_positions(self.mask_mod, False)(batch, head, rows, columns, *masks)
        scores = jnp.where(allowed, modified, dtype.type(-np.inf))
        top = lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
        shift = jnp.where(jnp.isneginf(top), 0, top)
        weights = jnp.exp(scores - shift)
        total = jnp.sum(weights, -1, keepdims=True)
        empty = total == 0  # no column is allowed
        total = jnp.where(empty, 1, total)
        sums = jnp.where(empty, -np.inf, shift + jnp.log(total))[..., 0]
        normal = (weights / total).astype(v.dtype).reshape(*grouped.shape[:4], -1)
        out = contract("bghls,bgsd->bghld", normal, v).astype(q.dtype)
        return out.reshape(*q.shape[:3], v.shape[3]), sums, top[..., 0]


def _over_positions(function: Modification, has_score: bool) -> Modification:
    """Map a function of a score and four positions, or of positions only, to arrays [batch, head, row, column]."""

    def mapped(*args: jax.Array) -> jax.Array:
        first = 1 if has_score else 0
        buffers = [None] * (len(args) - first - 4)
        call = function
        for axis in (3, 2, 1, 0):  # the last position is the innermost
            positions = [0 if i == axis else None for i in range(4)]
            call = jax.vmap(call, [0] * first + positions + buffers)
        return call(*args)

    return mapped


def _count_blocks(query: jax.Array, key: jax.Array) -> int:
    rows = query.shape[2]
    scores = math.prod(query.shape[:3]) * key.shape[2]
    return max(1, min(-(-scores // BLOCK_ELEMENTS), -(-rows // _LEAST_ROWS)))


def _join(blocks: jax.Array, rows: int) -> jax.Array:
    """Join blocks [block, batch, head, row, ...] and drop the padding."""
    together = jnp.moveaxis(blocks, 0, 2)
    return together.reshape(*together.shape[:2], -1, *together.shape[4:])[:, :, :rows]
