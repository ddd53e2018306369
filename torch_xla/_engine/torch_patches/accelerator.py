"""``torch.accelerator`` for xla: it is the accelerator of a machine without another one.

Asking for the accelerator starts no backend. torch asks as well, in scripts that only use the CPU (fork_rng,
checkpointing, the default device of a block mask): those callers get xla after its first use, and the answer of torch
before. Dynamo never gets it: it would guard the current stream of the accelerator with a function that only knows the
accelerator that torch was built for. In a script that has asked for the accelerator or used it, init_process_group()
chooses the backend xla, and DataLoader(pin_memory=True) pins nothing: memory of the host cannot be pinned for xla.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks
from torch_xla._engine.compat import accelerator
from torch_xla._engine.device import devices
from torch_xla._engine.torch_patches import device_memory_api, device_module, device_streams

#: Whether code outside torch has asked for the accelerator; never reset.
_is_requested = False


@functools.cache
def _other_accelerator() -> torch.device | None:
    """Return the accelerator that torch was built for, if there is one in this machine."""
    found: torch.device | None = accelerator.built_accelerator()
    return found if found is not None and torch.get_device_module(found).is_available() else None


def is_xla_accelerator() -> bool:
    """Whether xla is the accelerator: there is no other one. Starts no backend."""
    return _other_accelerator() is None


def _caller() -> tuple[str, str]:
    """Return the names of the module and of the function that call torch.accelerator."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_PASSED):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")), frame.f_code.co_qualname


_PASSED = ("torch.accelerator", "torch_xla._engine", "torch._utils")

#: Callers that decide by the accelerator what a script without a device gets: DataLoader(pin_memory=True) and
#: init_process_group().
_DEFAULTS = {
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__init__"),
    ("torch.distributed.distributed_c10d", "BackendConfig.__init__"),
}


def _current(original: Callable[[], Any]) -> Any:
    """Choose who gets xla, which no other accelerator hides.

    | caller | gets xla |
    | --- | --- |
    | code outside torch | yes, and has asked for the accelerator |
    | torch._dynamo | no |
    | one of _DEFAULTS | once a script has asked for the accelerator or a backend has started |
    | the rest of torch.distributed | yes |
    | the rest of torch | once a backend has started |
    """
    if not is_xla_accelerator():
        return original()
    global _is_requested
    module, function = _caller()
    if not module.startswith("torch."):
        _is_requested = True
        return torch.device("xla")
    if module.startswith("torch._dynamo."):
        return original()
    if (module, function) in _DEFAULTS:
        chosen = _is_requested or devices.backend_started()
    else:
        chosen = module.startswith("torch.distributed.") or devices.backend_started()
    return torch.device("xla") if chosen else original()


def _current_or_cpu(original: Callable[[], Any]) -> Any:
    """Return xla once a script has asked for the accelerator or used it; torch's answer before."""
    if is_xla_accelerator() and (_is_requested or devices.backend_started()):
        return torch.device("xla")
    return original()


def _device_type(original: Callable[[], Any]) -> Any:
    found = original()
    if found is None and is_xla_accelerator() and not _caller()[0].startswith("torch."):
        return "xla"
    return found


def _exchange_device(index: int) -> int:
    before = int(recorder.bindings().current_device())
    if index >= 0:
        recorder.bindings().set_current_device(recorder.ordinal(index))
    return before


def _capability(index: int) -> dict[str, Any]:
    recorder.ordinal(index)
    kinds = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64, torch.complex64, torch.complex128)  # fmt: skip
    return {"supported_dtypes": set(kinds)}


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "emptyCache": device_memory_api.empty_cache,
    "emptyHostCache": device_memory_api.empty_cache,
    "exchangeDevice": _exchange_device,
    "getDeviceCapability": _capability,
    "getDeviceIndex": lambda: int(recorder.bindings().current_device()),
    "getDefaultGenerator": device_module.DefaultGenerator,
    "getDeviceStats": device_memory_api.memory_stats_as_nested_dict,
    "getMemoryInfo": device_memory_api.mem_get_info,
    "getStream": device_streams.current_stream,
    "isAllocatorInitialized": devices.backend_started,
    "maybeExchangeDevice": _exchange_device,
    "resetAccumulatedStats": device_memory_api.reset_accumulated_memory_stats,
    "resetPeakStats": device_memory_api.reset_peak_memory_stats,
    "setDeviceIndex": _exchange_device,
    "setStream": device_streams.set_stream,
    "synchronizeDevice": lambda index: device_streams.synchronize_device(recorder.ordinal(index)),
}


def patch_accelerator() -> None:
    """Wrap torch's functions, once."""
    accelerator.wrap_current(*(dynamo_hooks.graph_break(f) for f in (_current, _current_or_cpu, _device_type)))
    accelerator.wrap_functions(_FUNCTIONS, is_xla_accelerator)
