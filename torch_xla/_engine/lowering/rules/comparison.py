"""Lowering rules of comparisons and logical operators, which return bool."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.elementwise import Function, comparison, register_table
from torch_xla._engine.lowering.registry import LoweringRuleContext, Operand

_COMPARISONS: dict[str, Function] = {
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "ne": jnp.not_equal,
}

_CONNECTIVES: dict[str, Function] = {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
}


def _logical(function: Function) -> Function:
    def rule(context: LoweringRuleContext, *operands: Operand) -> jax.Array:
        return function(*(convert(x, np.dtype(np.bool_)) for x in operands))

    return rule


register_table(comparison, _COMPARISONS, "Scalar", "Tensor")
register_table(_logical, _CONNECTIVES)
