"""Converts arrays and scalars between dtypes with torch's semantics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.registry import Operand, ScalarOperand, lower


def convert(x: Operand, dtype: np.dtype | torch.dtype) -> jax.Array:
    """Convert ``x`` to a jax array of ``dtype``: complex numbers lose their imaginary part, integers wrap around."""
    dtype = dtypes.storage_numpy_dtype(dtype) if isinstance(dtype, torch.dtype) else dtype
    value: Any = x.value if isinstance(x, ScalarOperand) else x
    if isinstance(value, (bool, int, float, complex)):
        value = np.asarray(value)  # numpy wraps -1 to 255 as torch does; jax raises
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating) and dtype != np.bool_:
        value = value.real
    if jnp.issubdtype(value.dtype, jnp.floating) and dtype.kind in "iu":
        value = _wrap(value, dtype)
    if dtype == _FLOAT8 and _SATURATES:
        value = jnp.clip(value.astype(np.float32), *_FLOAT8_LIMITS)  # XLA returns NaN where torch saturates
    return jnp.asarray(value.astype(dtype))


#: The only 8-bit float that saturates in torch, including infinities, from torch 2.13 on; before, it becomes NaN.
_FLOAT8 = dtypes.numpy_dtype(torch.float8_e4m3fn)
_FLOAT8_LIMITS = (torch.finfo(torch.float8_e4m3fn).min, torch.finfo(torch.float8_e4m3fn).max)
_SATURATES = bool(torch.tensor(1e4, device="cpu").to(torch.float8_e4m3fn).float().isfinite())


def _wrap(value: Any, dtype: np.dtype) -> Any:
    """Convert floats to integers that wrap around to ``dtype``: torch converts 300.0 to 44 in uint8, XLA saturates."""
    if dtype == np.uint64:
        return jnp.where(value < 0, value.astype(np.int64).astype(dtype), value.astype(dtype))
    return value.astype(np.int64) if dtype.itemsize < 4 or dtype == np.uint32 else value


def opmath(dtype: np.dtype) -> np.dtype:
    """Return the dtype torch computes in for tensors of ``dtype``: float32 for 16- and 8-bit floats, else itself."""
    return np.dtype(np.float32 if dtypes.is_reduced_floating(dtype) else dtype)


@lower("prims::convert_element_type")
def _convert_element_type(x: jax.Array, dtype: torch.dtype) -> jax.Array:
    return convert(x, dtype)
