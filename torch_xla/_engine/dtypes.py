"""The one table that maps torch dtypes to the dtypes of device buffers, and torch's promotion rule."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

_NUMPY: dict[torch.dtype, type] = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.uint16: np.uint16,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}
_TO_NUMPY = {t: np.dtype(n) for t, n in _NUMPY.items()}
_TO_TORCH = {n: t for t, n in _TO_NUMPY.items()}

#: torch's integer codes for dtypes (``c10::ScalarType``), as the dispatcher's ``ScalarType?`` arguments carry them.
FROM_CODE: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool,
    15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 25: torch.float8_e5m2fnuz,
    26: torch.float8_e4m3fnuz, 27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip


def is_supported(dtype: torch.dtype) -> bool:
    """Whether tensors of ``dtype`` can live on an xla device (quantised and sub-byte types cannot)."""
    return dtype in _TO_NUMPY


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The dtype of the device buffer that holds a tensor of torch dtype ``dtype``."""
    return _TO_NUMPY[dtype]


def to_torch(dtype: np.dtype | type) -> torch.dtype:
    """The torch dtype of a jax or numpy dtype. Raises KeyError for a dtype torch does not have."""
    return _TO_TORCH[np.dtype(dtype)]


def is_inexact(dtype: np.dtype) -> bool:
    """True for floating and complex dtypes, bfloat16 and float8 included."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_reduced_float(dtype: np.dtype) -> bool:
    """True for 16-bit and 8-bit floats: torch computes on them in float32 and rounds once."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and np.dtype(dtype).itemsize < 4


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def promote(dims: Iterable[torch.dtype], zeros: Iterable[torch.dtype], wrapped: Iterable[torch.dtype]) -> torch.dtype:
    """torch's result type of operands with dimensions, without any, and of Python numbers.

    A later group takes part only where its category (bool < integer < floating < complex) is higher than all before
    it: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
    """
    result: torch.dtype | None = None
    for group in (dims, zeros, wrapped):
        kind: torch.dtype | None = None
        for dtype in group:
            kind = dtype if kind is None else torch.promote_types(kind, dtype)
        if kind is None:
            continue
        if result is None or _category(kind) > _category(result):
            result = kind if result is None or not _keeps_width(result, kind) else torch.promote_types(result, kind)
    if result is None:
        raise TypeError("promote: no operand has a dtype")
    return result


def _keeps_width(result: torch.dtype, kind: torch.dtype) -> bool:
    # float32 tensor + complex number is complex64, float64 tensor + complex number is complex128.
    return kind.is_complex and result.is_floating_point
