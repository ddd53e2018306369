"""Lowering rules of the ops that the recorder adds to graphs itself: random seeds and uninitialized memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.registry import LoweringRuleContext, ScalarOperand, lower

#: Ops that the recorder adds to graphs and that are not registered as torch operators.
UNRECORDED = frozenset({"torch_xla::seed"})


@lower("torch_xla::seed")
def _seed(seed: ScalarOperand) -> jax.Array:
    """Return the 64-bit seed as int64, the dtype in which it is transferred; see key_data."""
    return seed.value if isinstance(seed, ScalarOperand) else jnp.asarray(seed, jnp.int64)


#: Increment of the random state per draw, as 32-bit halves (low, high); the same as in csrc/runtime/rng_state.cpp.
STRIDE = (1, 0x9E3779B9)


def key_data(seed: jax.Array, draws: int) -> jax.Array:
    """Return the raw data of a threefry key (uint32[2]): the random state ``draws`` draws after ``seed``.

    ``seed`` is a 64-bit integer, or its two 32-bit halves with the low half first.

    The state one draw after ``seed + STRIDE`` is the state two draws after ``seed``, so that the random numbers do not
    depend on where a graph is flushed. The recorder switches to another seed before the low half would carry into the
    high half: a 64-bit sum takes twice as long to compile as the rest of a draw (jax 0.10.2, CPU).
    """
    return lax.bitcast_convert_type(seed, jnp.uint32) + np.array([draws * s % 2**32 for s in STRIDE], np.uint32)


@lower("aten::empty.memory_format", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
       "aten::new_empty_strided", ctx=True)  # fmt: skip
def _empty(ctx: LoweringRuleContext, *_: Any) -> jax.Array:
    # Zeros make a program that reads uninitialized memory deterministic.
    return jnp.zeros(ctx.shape, ctx.dtype)


@lower("aten::resize", ctx=True)
def _resize(ctx: LoweringRuleContext, x: jax.Array, *_: Any) -> jax.Array:
    # As on the CPU, resizing preserves the first elements; unlike on the CPU, new elements are zero.
    size = int(np.prod(ctx.shape, dtype=np.int64))
    flat = x.ravel()[:size]
    return jnp.pad(flat, (0, size - flat.size)).reshape(ctx.shape)
