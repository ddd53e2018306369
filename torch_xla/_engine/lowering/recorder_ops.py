"""Rules of what the recorder itself puts into graphs: seeds, results of an op with several, memory not yet written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.registry import LoweringRuleContext, Number, lower

#: Rules for what the recorder puts into graphs by itself, and torch knows no operator of.
UNRECORDED = frozenset({"torch_xla::seed"})


@lower("torch_xla::seed")
def _seed(seed: Number) -> jax.Array:
    """The 64-bit seed as the int64 it is sent as; see key_data."""
    return seed.value if isinstance(seed, Number) else jnp.asarray(seed, jnp.int64)


#: From the random state of one draw to that of the next, by halves: low, high. csrc/runtime/rng_state.cpp counts with the same.
STRIDE = (1, 0x9E3779B9)


def key_data(seed: jax.Array, draws: int) -> jax.Array:
    """uint32[2], the raw data of a threefry key: the state ``draws`` draws after the 64-bit integer ``seed``.

    That may come as its two halves, the low one first, in 32 bits each.

    One draw after seed + stride is two draws after seed: where a program is cut changes no number. The recorder starts
    with another seed before the low half would carry into the high one: a sum of 64 bits takes twice as long to compile
    as the rest of a draw (jax 0.10.2, CPU).
    """
    return lax.bitcast_convert_type(seed, jnp.uint32) + np.array([draws * s % 2**32 for s in STRIDE], np.uint32)


@lower("aten::empty.memory_format", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
       "aten::new_empty_strided", ctx=True)  # fmt: skip
def _empty(ctx: LoweringRuleContext, *_: Any) -> jax.Array:
    # Zeros, so that a program that reads what it never wrote does the same every time.
    return jnp.zeros(ctx.shape, ctx.dtype)


@lower("aten::resize", ctx=True)
def _resize(ctx: LoweringRuleContext, x: jax.Array, *_: Any) -> jax.Array:
    # As on the CPU, the first elements stay; unlike there, new ones are zeros.
    size = int(np.prod(ctx.shape, dtype=np.int64))
    flat = x.ravel()[:size]
    return jnp.pad(flat, (0, size - flat.size)).reshape(ctx.shape)
