"""Matrix multiplication with int8 or int4 weights in XLA operations; XLA uses int8 units where the device has them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.rules.matmul import precision_for

Maybe = jax.Array | None


def matmul(
    x: jax.Array, w: jax.Array, scaler: jax.Array, zero_point: Maybe, block_size: int, int4: bool, quantize: bool
) -> jax.Array:
    """Compute ``x @ (w * scaler - zero_point)``, [..., outputs], in the dtype of ``x``.

    Args:
      w: [outputs, inputs], or blockwise [blocks, inputs per block, outputs].
      scaler: one value per output, or blockwise one per block and output.
      quantize: round each row of ``x`` to 8 bits and accumulate in int32.
    """
    if int4:
        w = w.astype(jnp.int4).astype(np.int8)
    out = _blockwise(x, w, scaler, block_size) if block_size > 0 else _per_channel(x, w, scaler, quantize)
    if zero_point is not None:
        shift = zero_point.astype(np.float32)
        if block_size > 0:
            sums = jnp.sum(x.reshape(*x.shape[:-1], -1, block_size).astype(np.float32), -1)
            out -= jnp.einsum("...s,sn->...n", sums, shift, precision=lax.Precision.HIGHEST)
        else:
            out -= jnp.sum(x.astype(np.float32), -1, keepdims=True) * shift
    found: jax.Array = out.astype(x.dtype)
    return found


def _per_channel(x: Any, w: Any, scaler: Any, quantize: bool) -> Any:
    scale = scaler.astype(np.float32)
    over = ((x.ndim - 1,), (1,)), ((), ())
    if not quantize:
        product = lax.dot_general(
            x, w.astype(x.dtype), over, precision=precision_for(x.dtype), preferred_element_type=np.float32
        )
        return product * scale
    rounded, step = _quantize_rows(x)
    product = lax.dot_general(rounded, w, over, preferred_element_type=np.int32)
    return product.astype(np.float32) * step * scale


def _quantize_rows(x: Any) -> tuple[Any, Any]:
    """Quantize each row to integers from -127 to 127; also return the step of each row."""
    wide = x.astype(np.float32)
    step = jnp.max(jnp.abs(wide), -1, keepdims=True) / 127
    return jnp.round(wide / jnp.where(step == 0, 1, step)).astype(np.int8), step


def _blockwise(x: Any, w: Any, scaler: Any, block_size: int) -> Any:
    parts = x.reshape(*x.shape[:-1], -1, block_size)
    product = jnp.einsum(
        "...sc,scn->...sn", parts, w.astype(x.dtype), precision=precision_for(x.dtype),
        preferred_element_type=np.float32,
    )  # fmt: skip
    return jnp.sum(product * scaler.astype(np.float32), -2)
