"""Conversions between dtypes, the way torch does them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine import dtypes
from torch_xla._engine.lowering.registry import Number, Operand, lower


def convert(x: Operand, dtype: np.dtype | torch.dtype) -> jax.Array:
    """``x`` as a jax array of ``dtype``: complex numbers lose their imaginary part, integers wrap around."""
    dtype = dtypes.to_numpy(dtype) if isinstance(dtype, torch.dtype) else dtype
    value: Any = x.value if isinstance(x, Number) else x
    if isinstance(value, (bool, int, float, complex)):
        value = np.asarray(value)  # numpy wraps -1 to 255 as torch does; jax would refuse it
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating) and dtype != np.bool_:
        value = value.real
    if jnp.issubdtype(value.dtype, jnp.floating) and _is_narrow(dtype):
        value = value.astype(np.int64)  # XLA saturates where torch wraps: 300.0 is 44 as uint8
    return jnp.asarray(value.astype(dtype))


def opmath(dtype: np.dtype) -> np.dtype:
    """The dtype in which torch computes on tensors of ``dtype``: float32 for 16-bit and 8-bit floats, else itself."""
    return np.dtype(np.float32 if dtypes.is_reduced_float(dtype) else dtype)


def _is_narrow(dtype: np.dtype) -> bool:
    return (dtype.kind in "iu" and dtype.itemsize < 4) or dtype == np.uint32


@lower("prims::convert_element_type")
def _convert_element_type(x: jax.Array, dtype: torch.dtype) -> jax.Array:
    return convert(x, dtype)
