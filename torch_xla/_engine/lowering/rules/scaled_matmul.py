"""Lowering rules of float8 matrix multiplication with scales."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.matmul import grouped_product


@lower("aten::_scaled_mm", ctx=True)
def _scaled_mm(
    ctx: LoweringRuleContext,
    a: jax.Array,
    b: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    bias: jax.Array | None = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """Multiply float8 matrices, accumulated in float32, with a scale for each matrix, or for each row and column.

    bfloat16 represents every float8 number, and every platform multiplies it; XLA uses float8 units where a GPU has
    them. torch's CPU kernel ignores ``scale_result``, too.
    """
    wide = [x.astype(jnp.bfloat16) for x in (a, b)]
    product = lax.dot(*wide, preferred_element_type=np.float32)
    if scale_a.size == 1 and scale_b.size == 1:
        product = product * (scale_a.reshape(()) * scale_b.reshape(()))
    else:
        product = product * scale_a * scale_b
    if bias is not None:
        product = product + bias.astype(np.float32).reshape(-1)
    return convert(product, ctx.dtype)


#: torch.nn.functional.ScalingType: one scale for a matrix, and one for each row of the first or column of the second.
_TENSOR_WISE, _ROW_WISE = 0, 1


@lower("aten::_scaled_mm_v2", ctx=True)
def _scaled_mm_v2(
    ctx: LoweringRuleContext,
    a: jax.Array,
    b: jax.Array,
    scale_a: list[jax.Array],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[jax.Array],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: jax.Array | None = None,
    out_dtype: Any = None,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> jax.Array:
    """The operator of ``torch.nn.functional.scaled_mm``, for one scale per matrix, or per row and column."""
    recipes = {*recipe_a, *recipe_b}
    if not recipes <= {_TENSOR_WISE, _ROW_WISE} or len(scale_a) != 1 or len(scale_b) != 1:
        raise NotImplementedError(
            f"scaled_mm: the recipes {list(recipe_a)} and {list(recipe_b)} scale blocks, which xla does not support; "
            "use ScalingType.TensorWise or RowWise"
        )
    rows = scale_a[0].reshape(-1, 1) if recipe_a[0] == _ROW_WISE else scale_a[0]
    columns = scale_b[0].reshape(1, -1) if recipe_b[0] == _ROW_WISE else scale_b[0]
    return _scaled_mm(ctx, a, b, rows, columns, bias)


@lower("aten::_scaled_grouped_mm", ctx=True)
def _scaled_grouped_mm(
    ctx: LoweringRuleContext,
    a: jax.Array,
    b: jax.Array,
    scale_a: jax.Array,
    scale_b: jax.Array,
    ends: jax.Array | None = None,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> jax.Array:
    """Multiply float8 matrices by groups, accumulated in float32, with a scale for each row and column of a group."""
    product = grouped_product(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), ends, np.dtype(np.float32))
    if ends is None or product.ndim == 3:
        groups, rows, columns = product.shape
        scaled = product * scale_a.reshape(groups, rows, 1) * scale_b.reshape(groups, 1, columns)
    elif b.ndim == 3:
        scaled = product * scale_a[:, None] * _scales_of_groups(scale_b, ends, len(product))
    else:
        scaled = product * _scales_of_groups(scale_a, ends, product.shape[1]).T * scale_b
    return convert(scaled, ctx.dtype)


def _scales_of_groups(scales: jax.Array, ends: jax.Array, count: int) -> jax.Array:
    """Return for each of ``count`` rows the scales (g, n) of its group, and ones for rows after the last group."""
    group = (lax.iota(np.int32, count)[:, None] >= ends).sum(1, dtype=np.int32)
    return jnp.concatenate([scales, jnp.ones_like(scales, shape=(1, scales.shape[1]))])[group]


@lower("aten::_scaled_grouped_mm_v2", ctx=True)
def _scaled_grouped_mm_v2(
    ctx: LoweringRuleContext,
    a: jax.Array,
    b: jax.Array,
    scale_a: list[jax.Array],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[jax.Array],
    recipe_b: list[int],
    swizzle_b: list[int],
    ends: jax.Array | None = None,
    *unused: Any,
) -> jax.Array:
    """The operator of ``torch.nn.functional.scaled_grouped_mm``; the recorder rejects other recipes than RowWise."""
    return _scaled_grouped_mm(ctx, a, b, scale_a[0], scale_b[0], ends)
