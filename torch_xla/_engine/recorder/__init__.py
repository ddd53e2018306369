"""The C++ recorder: loads the extension, validates devices, and sets jax's config for calls of jax."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import jax
import torch

from torch_xla._engine.compat import pjrt_execution

_module: ModuleType | None = None


def bindings() -> ModuleType:
    """Return the pybind11 module, built on first use for this torch. Raises RecorderBuildError if the build fails."""
    global _module
    if _module is None:
        from torch_xla._engine.recorder import build

        _module = build.load_recorder()
    return _module


def enable_x64(keep_promotion: bool = False) -> AbstractContextManager[Any]:
    """Enable jax's 64-bit types in this thread, and disable user options that change or break programs.

    The returned context manager restores the user's config even after an interrupt. With ``keep_promotion`` the user's
    jax_numpy_rank_promotion and jax_numpy_dtype_promotion stay in force: use it while tracing the user's functions.
    """
    if pjrt_execution.x64_setter()[0] is None:
        switched: AbstractContextManager[Any] = jax.enable_x64(True)
        return switched
    options = pjrt_execution.isolating_options(keep_promotion)
    found: AbstractContextManager[Any] = bindings().WideTypes(options, *pjrt_execution.transfer_guard())
    return found


def allow_transfers(wide: bool = False) -> AbstractContextManager[Any]:
    """Allow transfers of this thread, independent of the user's jax_transfer_guard. Returns a context manager.

    With ``wide`` values of 64 bits keep their type on the device, as an upload by ``raw_device_put`` needs. Unlike
    ``enable_x64`` this sets no option for tracing, unless jax traces the upload.
    """
    if wide and (pjrt_execution.x64_setter()[0] is None or pjrt_execution.raw_device_put() is None):
        return enable_x64()
    options = pjrt_execution.wide_options() if wide else []
    found: AbstractContextManager[Any] = bindings().WideTypes(options, *pjrt_execution.transfer_guard())
    return found


class NoSuchDeviceError(IndexError, RuntimeError):
    """The process has no xla device with this ordinal. Upstream's functions raise IndexError, torch RuntimeError."""


def ordinal(which: torch.device | str | int | None = None) -> int:
    """Return the ordinal of a device. None, or a device without an index, means the thread's current device.

    Validating an ordinal above 0 starts the backend.

    Raises:
        RuntimeError: The device is not an xla device, or does not exist.
        NoSuchDeviceError: An int ordinal does not exist.
    """
    if which is None:
        return int(bindings().current_device())
    if isinstance(which, int):
        return _validate_ordinal(which)
    return int(bindings().validate_device(torch.device(which)))


def ordinal_or_current(which: torch.device | str | int | None = None) -> int:
    """Return the ordinal of a device; that of the current one also for a negative number, as torch.cuda does."""
    return ordinal(None if isinstance(which, int) and which < 0 else which)


def _validate_ordinal(which: int) -> int:
    try:
        return int(bindings().validate_ordinal(which))
    except RuntimeError as error:  # or the backend failed to start
        if not str(error).startswith(f"xla:{which} does not exist"):
            raise
        raise NoSuchDeviceError(*error.args) from None
