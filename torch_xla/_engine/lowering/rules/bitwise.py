"""Lowering rules of bitwise operators and shifts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.elementwise import arithmetic, register_table


def _shift_left(x: jax.Array, count: jax.Array) -> jax.Array:
    if dtypes.is_inexact(x.dtype):
        return x * lax.exp2(count)
    return jnp.left_shift(x, count)


def _shift_right(x: jax.Array, count: jax.Array) -> jax.Array:
    if dtypes.is_inexact(x.dtype):
        return x / lax.exp2(count)
    return jnp.right_shift(x, count)


_BITWISE = {"bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor}
_SHIFTS = {"bitwise_left_shift": _shift_left, "bitwise_right_shift": _shift_right}

register_table(arithmetic, {"bitwise_not": jnp.bitwise_not})
register_table(arithmetic, _BITWISE, "Scalar", "Scalar_Tensor", "Tensor")
register_table(arithmetic, _SHIFTS, "Scalar_Tensor", "Tensor", "Tensor_Scalar")
register_table(arithmetic, {"__lshift__": _shift_left, "__rshift__": _shift_right}, "Scalar", "Tensor")
