"""Functions of torch's C module behind ``torch.accelerator``, for which third-party device types have no hook.

torch chooses the accelerator when it is built; a device type other than PrivateUse1 cannot register. Each function is
wrapped: it calls the replacement while the accelerator is xla, and else the original. Nothing else of torch is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_xla._engine.compat import dynamo
from torch_xla._engine.compat.private_api import PrivateApi

_WITHOUT = "torch.accelerator does not know xla: use torch_xla.device() and torch.xla"
_CURRENT = PrivateApi("torch._C", "_accelerator_getAccelerator", "torch.accelerator on xla", _WITHOUT)
_CURRENT_OR_CPU = PrivateApi(
    "torch._C",
    "_get_accelerator",
    "init_process_group() chooses the backend of xla",
    "init_process_group() without arguments chooses gloo: name the backend xla",
)
_TYPE = PrivateApi("torch._utils", "_get_available_device_type", "libraries find xla by this function", _WITHOUT)
_FUNCTIONS = {
    name: PrivateApi("torch._C", f"_accelerator_{name}", "torch.accelerator on xla", _WITHOUT, since=since)
    for name, since in {
        "emptyCache": "",
        "emptyHostCache": "2.13",
        "exchangeDevice": "",
        "getDefaultGenerator": "2.14",
        "getDeviceCapability": "2.13",
        "getDeviceIndex": "",
        "getDeviceStats": "",
        "getMemoryInfo": "2.13",
        "getStream": "",
        "isAllocatorInitialized": "",
        "maybeExchangeDevice": "",
        "resetAccumulatedStats": "",
        "resetPeakStats": "",
        "setDeviceIndex": "",
        "setStream": "",
        "synchronizeDevice": "",
    }.items()
}


def built_accelerator() -> Any:
    """Return the accelerator that torch was built for, which need not be in this machine; None without one."""
    found = _CURRENT.resolve_or_none()
    return None if found is None else getattr(found, "__wrapped__", found)()


def wrap_current(
    current: Callable[[Any], Any], current_or_cpu: Callable[[Any], Any], device_type: Callable[[Any], Any]
) -> None:
    """Wrap the functions that return the accelerator, the accelerator or CPU, and its type: ``current(original)``."""
    _CURRENT.wrap(current)
    _CURRENT_OR_CPU.wrap(current_or_cpu)
    _TYPE.wrap(device_type)


def wrap_functions(replacements: Mapping[str, Callable[..., Any]], is_chosen: Callable[[], bool]) -> None:
    """Wrap the other functions: while ``is_chosen()``, each calls the one of its name in ``replacements``."""
    for name, entry in _FUNCTIONS.items():
        entry.wrap(_choose(replacements[name], is_chosen))


def _choose(replacement: Callable[..., Any], is_chosen: Callable[[], bool]) -> Callable[..., Any]:
    def call(original: Callable[..., Any], *args: Any) -> Any:
        return replacement(*args) if is_chosen() else original(*args)

    dynamo.skip_frames_of(call)
    dynamo.graph_break_at(call, "it queries the accelerator")
    return call
