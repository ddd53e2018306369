"""PyTorch on XLA devices: ``device="xla"``."""

from __future__ import annotations

from torch_xla._engine import start as _start
from torch_xla._version import __version__

_start.start()

from torch_xla import _XLAC, backends, debug, experimental, runtime, stablehlo  # noqa: E402
from torch_xla.stablehlo import save_as_stablehlo, save_torch_model_as_stablehlo  # noqa: E402
from torch_xla.torch_xla import (  # noqa: E402
    compile,
    device,
    device_count,
    devices,
    launch,
    manual_seed,
    real_devices,
    step,
    sync,
)

__all__ = [
    "_XLAC",
    "__version__",
    "backends",
    "compile",
    "debug",
    "device",
    "device_count",
    "devices",
    "experimental",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo",
    "step",
    "sync",
]
