"""Rules of what the recorder itself puts into graphs: seeds, results of an op with several, memory not yet written."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.registry import Context, Number, lower

#: Rules for what the recorder puts into graphs by itself, and torch knows no operator of.
UNRECORDED = frozenset({"torch_xla::seed"})


@lower("torch_xla::seed")
def _seed(seed: Number) -> jax.Array:
    """The 64-bit seed as the int64 it is sent as; see key_data."""
    return seed.value if isinstance(seed, Number) else jnp.asarray(seed, jnp.int64)


def key_data(seed: jax.Array) -> jax.Array:
    """uint32[2], the raw data of a threefry key, from an int64 seed."""
    return lax.bitcast_convert_type(seed, jnp.uint32)


@lower("aten::empty.memory_format", "aten::empty_strided", "aten::empty_like", "aten::new_empty",
       "aten::new_empty_strided", ctx=True)  # fmt: skip
def _empty(ctx: Context, *_: Any) -> jax.Array:
    # Zeros, so that a program that reads what it never wrote does the same every time.
    return jnp.zeros(ctx.shape, ctx.dtype)


@lower("aten::resize", ctx=True)
def _resize(ctx: Context, x: jax.Array, *_: Any) -> jax.Array:
    # As on the CPU, the first elements stay; unlike there, new ones are zeros.
    size = int(np.prod(ctx.shape, dtype=np.int64))
    flat = x.ravel()[:size]
    return jnp.pad(flat, (0, size - flat.size)).reshape(ctx.shape)
