"""The recorder (C++), loaded once: built on the first import for this torch, then registered with the dispatcher."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import jax
import torch

from torch_xla._engine.compat import pjrt_execution

_module: ModuleType | None = None


def bindings() -> ModuleType:
    """The recorder's bindings. Raises RecorderBuildError where it cannot be built."""
    global _module
    if _module is None:
        from torch_xla._engine.recorder import build

        _module = build.load_recorder()
    return _module


def enable_x64(keep_promotion: bool = False) -> AbstractContextManager[Any]:
    """In the block, jax has 64-bit types in this thread, and ignores the user's options that change or break programs.

    An interrupt leaves the user's jax as it was, too. With ``keep_promotion`` the user's jax_numpy_rank_promotion and
    jax_numpy_dtype_promotion stay in force: use it around the tracing of the user's functions.
    """
    if pjrt_execution.x64_setter()[0] is None:
        switched: AbstractContextManager[Any] = jax.enable_x64(True)
        return switched
    options = pjrt_execution.isolating_options(keep_promotion)
    found: AbstractContextManager[Any] = bindings().WideTypes(options, *pjrt_execution.transfer_guard())
    return found


def allow_transfers() -> AbstractContextManager[Any]:
    """In the block, transfers of this thread are independent of the user's jax_transfer_guard."""
    found: AbstractContextManager[Any] = bindings().WideTypes([], *pjrt_execution.transfer_guard())
    return found


class NoSuchDeviceError(IndexError, RuntimeError):
    """An ordinal that this process has no xla device for; upstream's functions raise IndexError, torch RuntimeError."""


def ordinal(which: torch.device | str | int | None = None) -> int:
    """The ordinal of a device of the user's; None, and a device without an index, is the thread's current one.

    Raises RuntimeError for one that is no xla device or does not exist (a number: NoSuchDeviceError). Only an ordinal
    above 0 starts the backend.
    """
    if which is None:
        return int(bindings().current_device())
    if isinstance(which, int):
        return _validate_ordinal(which)
    return int(bindings().validate_device(torch.device(which)))


def _validate_ordinal(which: int) -> int:
    try:
        return int(bindings().validate_ordinal(which))
    except RuntimeError as error:  # of the backend, perhaps, which could not start
        if not str(error).startswith(f"xla:{which} does not exist"):
            raise
        raise NoSuchDeviceError(*error.args) from None
