"""Private names of torch that the hooks need. torch_xla's package ``compat`` declares them, and reports missing ones.

A name that the installed torch lacks is skipped here: importing torch must not fail, and torch_xla warns when it loads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

#: Prefix of the functions of ``torch._C`` behind ``torch.accelerator``.
_ACCELERATOR = "_accelerator_"


def accelerator_functions() -> list[tuple[Any, str]]:
    """Return the functions behind ``torch.accelerator``, as pairs of an owner and a name."""
    return [(torch._C, name) for name in dir(torch._C) if name.startswith(_ACCELERATOR)]


def available_device_type() -> list[tuple[Any, str]]:
    """Return the function by which libraries find a device type, as a pair of an owner and a name."""
    return [(torch._utils, "_get_available_device_type")]


def restore_location() -> list[tuple[Any, str]]:
    """Return the function that torch.load calls for a tensor of a device, as a pair of an owner and a name."""
    return [(torch._utils, "_get_restore_location")]


def default_compiler() -> list[tuple[Any, str]]:
    """Return the default backend of torch.compile, as a pair of a class and a name."""
    found = getattr(torch, "_TorchCompileInductorWrapper", None)
    return [] if found is None else [(found, "__call__")]


def fake_tensor_constructor() -> list[tuple[Any, str]]:
    """Return the constructor of fake tensors, as a pair of a class and a name; nothing if torch has not imported it."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return [] if module is None else [(module.FakeTensor, "__new__")]


def built_accelerator() -> torch.device | None:
    """Return the accelerator that torch was built for."""
    current = getattr(torch._C, "_accelerator_getAccelerator", None)
    found: torch.device | None = None if current is None else current()
    return found


def register_device_module(name: str, module: ModuleType) -> None:
    """Register ``module`` as ``torch.<name>``."""
    torch._register_device_module(name, module)


def skip_frames_of(function: Callable[..., Any]) -> None:
    """Exclude a function, and everything that it calls, from tracing by dynamo."""
    with suppress(AttributeError):
        dynamo = torch._C._dynamo.eval_frame
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))


def kernel(op: str, key: str) -> Any:
    """Return a reference to a kernel; None in releases without such references, where it may end while it runs."""
    find = getattr(torch.library, "get_kernel", None)
    return None if find is None else find(op, key)
