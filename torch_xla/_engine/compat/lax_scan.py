"""Loops of jax on TPUs: jax counts their rounds with 64 bits where 64-bit types are on, as they are for programs here.

A TPU has no 64-bit integers: its compiler makes pairs of 32-bit ones of them, and no longer sees how often such a loop
runs, which costs it its pipelines over rounds, and a report its figures.
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
    "lax.scan on TPUs counts its rounds with 32 bits",
    "on TPUs loops are slower, and torch_xla.aot counts their bodies once",
)
_MOST = np.iinfo(np.int32).max


def use_int32_scan_counters() -> None:
    """From now on a ``lax.scan`` that is compiled for TPUs counts its rounds with 32 bits. Warns where it cannot."""
    original = _SCAN.resolve_or_none()
    if original is None:
        _SCAN.warn_missing()
        return

    def scan(*args: Any, length: int, **params: Any) -> Any:
        return original(*args, length=np.int32(length) if length <= _MOST else length, **params)  # the counter's dtype

    mlir.register_lowering(primitives.scan_p, mlir.lower_fun(scan, multiple_results=True), platform="tpu")
