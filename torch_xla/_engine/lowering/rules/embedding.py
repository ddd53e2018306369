"""Lowering rules of embedding lookups and their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import lower
from torch_xla._engine.lowering.rules.indexing import TRUSTED
from torch_xla._engine.lowering.rules.reduction import vector_norm


@lower("aten::embedding")
def embedding(
    weight: jax.Array, indices: jax.Array, padding_idx: int = -1, by_frequency: bool = False, sparse: bool = False
) -> jax.Array:
    return weight.at[indices].get(**TRUSTED)


@lower("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad: jax.Array, indices: jax.Array, num_weights: int, padding_idx: int, by_frequency: bool
) -> jax.Array:
    rows = indices.reshape(-1)
    values = convert(grad, opmath(grad.dtype)).reshape(rows.size, grad.shape[-1])
    if by_frequency:
        count = jnp.zeros(num_weights, values.dtype).at[rows].add(1, **TRUSTED)
        values = values / count[rows][:, None]
    if padding_idx >= 0:
        rows = jnp.where(rows == padding_idx, num_weights, rows)  # out of range, which the scatter drops
    total = jnp.zeros((num_weights, grad.shape[-1]), values.dtype)
    return convert(total.at[rows].add(values, mode="drop", wrap_negative_indices=False), grad.dtype)


@lower("aten::embedding_renorm")
def embedding_renorm(weight: jax.Array, indices: jax.Array, max_norm: float, norm_type: float) -> jax.Array:
    wide = convert(weight, opmath(weight.dtype))
    norm = vector_norm(wide, norm_type, (1,), keepdims=True)
    used = jnp.zeros((weight.shape[0], 1), np.bool_).at[indices.reshape(-1)].set(True, **TRUSTED)
    scaled = convert(wide * (max_norm / (norm + 1e-7)), weight.dtype)
    return jnp.where(used & (norm > max_norm), scaled, weight)
