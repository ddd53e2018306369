"""PyTorch on XLA devices: ``device="xla"``."""

from __future__ import annotations

from torch_xla._engine.base.diagnostic_commands import is_diagnostic_command as _looks_at_importing
from torch_xla._version import __version__

if not _looks_at_importing():  # a command that diagnoses import errors must be able to start
    try:
        from torch_xla._engine import startup as _start

        _start.initialize()
    except (AttributeError, ImportError) as _error:
        from torch_xla._engine.compat.import_failure import explain_import_failure as _explain

        if _explained := _explain(_error):
            raise _explained from _error
        raise

    from torch_xla import _XLAC, _internal, backends, debug, experimental, runtime, stablehlo
    from torch_xla.distributed import xla_backend as _xla_backend  # noqa: F401  # registers process groups
    from torch_xla.stablehlo import save_as_stablehlo, save_torch_model_as_stablehlo
    from torch_xla.torch_xla import (
        compile,
        device,
        device_count,
        devices,
        launch,
        manual_seed,
        real_devices,
        set_custom_compile_options,
        step,
        sync,
    )

__all__ = [
    "_XLAC",
    "__version__",
    "_internal",
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
    "set_custom_compile_options",
    "stablehlo",
    "step",
    "sync",
]
