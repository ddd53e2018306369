"""Loads jax's Pallas kernels for NVIDIA GPUs, which later releases of jax deprecate and may remove."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


def load_pallas_gpu_module(name: str) -> ModuleType | None:
    """Return ``jax.experimental.pallas.ops.gpu.<name>``; None if this jax does not have it.

    The module warns at import that it is deprecated. A user of torch_xla cannot act on that: the warning is not shown.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"jax\.experimental\.pallas\.ops\.gpu", DeprecationWarning)
        try:
            return importlib.import_module(f"jax.experimental.pallas.ops.gpu.{name}")
        except ImportError:
            return None
