"""Use 32-bit loop counters for jax loops on TPUs: with 64-bit types enabled, jax counts with 64 bits.

TPUs have no 64-bit integers. Their compiler represents one by two 32-bit integers, and can then not infer the trip
count of a loop. Such a loop is not pipelined, and the cost analysis counts its body once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import primitives
from jax.interpreters import mlir

from torch_xla._engine.compat.private_api import PrivateApi

_SCAN = PrivateApi(
    "jax._src.lax.control_flow.loops",
    "_scan_impl",
    "32-bit loop counters of lax.scan on TPUs",
    "loops on TPUs are slower, and torch_xla.aot counts their bodies once",
)
_MOST = np.iinfo(np.int32).max


def use_int32_scan_counters() -> None:
    """Make ``lax.scan`` compiled for TPUs use a 32-bit loop counter. Warns if jax does not allow it."""
    original = _SCAN.resolve_or_none()
    if original is None:
        _SCAN.warn_missing()
        return

    def scan(*args: Any, length: int, **params: Any) -> Any:
        return original(*args, length=np.int32(length) if length <= _MOST else length, **params)  # the counter's dtype

    mlir.register_lowering(primitives.scan_p, mlir.lower_fun(scan, multiple_results=True), platform="tpu")
