"""Map torch dtypes to the storage dtypes of device buffers, and torch's type promotion rule.

A device may store a dtype as a narrower one: float64 as float32 on a TPU, all floats as bfloat16 with XLA_USE_BF16. The
tensor still reports its torch dtype. The storage dtypes are decided once, when the first value is stored
(``devices.py`` registers the decision with ``defer_storage_dtypes`` when the backend starts); naming a device decides
nothing. Before that, and permanently on most devices, each dtype is stored as itself. Code that creates or reads
buffers, and every lowering rule, calls ``storage_numpy_dtype``, and so computes in the storage dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock

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

#: torch's integer codes of dtypes (``c10::ScalarType``), as in the dispatcher's ``ScalarType?`` arguments.
FROM_CODE: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool,
    15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 25: torch.float8_e5m2fnuz,
    26: torch.float8_e4m3fnuz, 27: torch.uint16, 28: torch.uint32, 29: torch.uint64,
}  # fmt: skip
TO_CODE = {dtype: code for code, dtype in FROM_CODE.items()}


def is_supported(dtype: torch.dtype) -> bool:
    """Whether xla tensors can have ``dtype`` (quantized and sub-byte types are not supported)."""
    return dtype in _TO_NUMPY


# Written once, by set_storage_dtypes(); read without a lock.
_stored_as: dict[torch.dtype, torch.dtype] = {}
#: Decides the storage dtypes when the first value is stored; None before the backend starts and after the decision.
_undecided: Callable[[], dict[torch.dtype, torch.dtype]] | None = None
_deciding = fork_safe_lock()
#: Overrides the table in a block of override_storage_dtypes() or exact_dtypes().
_here: ContextVar[dict[torch.dtype, torch.dtype] | None] = ContextVar("stored_as", default=None)


def _table() -> dict[torch.dtype, torch.dtype]:
    found = _here.get()
    if found is not None:
        return found
    if _undecided is not None:
        _decide()
    return _stored_as


def storage_dtype_map(
    platform: str, *, use_bf16: bool = False, downcast_bf16: bool = False, use_32bit_long: bool = False
) -> dict[torch.dtype, torch.dtype]:
    """Return the dtypes that devices of ``platform`` (cpu, gpu, tpu) store as others, and their storage dtypes.

    Complex dtypes are not narrowed, as there are no narrower ones, except that TPUs have no 64-bit components.
    """
    stored: dict[torch.dtype, torch.dtype] = {}
    if platform == "tpu":
        stored |= {torch.float64: torch.float32, torch.complex128: torch.complex64}
    if downcast_bf16:
        stored |= {torch.float64: torch.float32, torch.float32: torch.bfloat16}
    if use_bf16:
        stored |= {torch.float64: torch.bfloat16, torch.float32: torch.bfloat16}
    if use_32bit_long:
        stored |= {torch.int64: torch.int32, torch.uint64: torch.uint32}
    return stored


def set_storage_dtypes(stored: dict[torch.dtype, torch.dtype]) -> None:
    """Set the storage dtypes for the rest of the process."""
    global _undecided
    _stored_as.clear()
    _stored_as.update(stored)
    _undecided = None


def defer_storage_dtypes(decide: Callable[[], dict[torch.dtype, torch.dtype]]) -> None:
    """Call ``set_storage_dtypes(decide())`` when the first storage dtype is requested."""
    global _undecided
    _undecided = decide


def _decide() -> None:
    with _deciding:
        decide = _undecided
        if decide is not None:  # no other thread has decided in the meantime
            set_storage_dtypes(decide())


def storage_dtypes_decided() -> bool:
    """Whether a storage dtype was requested since the backend started."""
    return _undecided is None


def storage_dtype_overrides() -> dict[torch.dtype, torch.dtype]:
    """Return the dtypes that differ from their storage dtype, with their storage dtypes."""
    return dict(_table())


def has_narrow_storage() -> bool:
    """Whether any dtype differs from its storage dtype."""
    return bool(_table())


@contextmanager
def override_storage_dtypes(table: dict[torch.dtype, torch.dtype]) -> Iterator[None]:
    """Use the storage dtypes of ``table`` in this block, on this thread, for example those of another platform."""
    token = _here.set(table)
    try:
        yield
    finally:
        _here.reset(token)


def exact_dtypes(*but: torch.dtype) -> AbstractContextManager[None]:
    """Store every dtype as itself in this block, on this thread, for computations that need the full precision.

    ``but``: dtypes that keep their storage dtype.
    """
    table = _table()
    return override_storage_dtypes({dtype: table[dtype] for dtype in but if dtype in table})


def storage_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the torch dtype of the device buffers of tensors of ``dtype``."""
    return _table().get(dtype, dtype)


def storage_numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the numpy dtype of the device buffers of tensors of torch dtype ``dtype``."""
    return _TO_NUMPY[storage_dtype(dtype)]


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the numpy dtype that corresponds to ``dtype``, regardless of the storage dtype."""
    return _TO_NUMPY[dtype]


def torch_dtype_of_storage(dtype: np.dtype | type) -> torch.dtype:
    """Return a torch dtype whose storage dtype is this jax or numpy dtype; the one of the same name if possible.

    Raises KeyError for a dtype that torch does not have.
    """
    named = _TO_TORCH[np.dtype(dtype)]
    if storage_dtype(named) == named:
        return named
    return next((wide for wide in _table() if storage_dtype(wide) == named), named)


def torch_dtype(dtype: np.dtype | type) -> torch.dtype:
    """Return the torch dtype with the name of a numpy dtype, the inverse of numpy_dtype. KeyError if there is none."""
    return _TO_TORCH[np.dtype(dtype)]


def is_inexact(dtype: np.dtype) -> bool:
    """Whether a dtype is floating or complex, including bfloat16 and float8."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_reduced_floating(dtype: np.dtype) -> bool:
    """Whether a dtype is a 16-bit or 8-bit float: torch computes on these in float32 and rounds once."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and np.dtype(dtype).itemsize < 4


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def promote(dims: Iterable[torch.dtype], zeros: Iterable[torch.dtype], wrapped: Iterable[torch.dtype]) -> torch.dtype:
    """Return torch's result type of operands with dimensions, zero-dimensional operands, and Python numbers.

    A later group takes part only if its category (bool < integer < floating < complex) is higher than that of all
    earlier groups: https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc
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
        raise TypeError("promote: expected at least one operand")
    return result


def _keeps_width(result: torch.dtype, kind: torch.dtype) -> bool:
    # float32 tensor + complex number is complex64, float64 tensor + complex number is complex128.
    return kind.is_complex and result.is_floating_point
