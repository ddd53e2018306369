"""Where torch_xla is loaded: each place of torch that a program reaches first when it uses xla.

    a tensor                 kernels for the dispatch key XLA; the device guard (device_guard.py)
    a stream or generator    the device guard
    torch.xla                a module that loads torch_xla when a name is read
    torch.accelerator        its functions; not for callers inside torch, which ask in CPU scripts as well
    functions with a device  Module.to, init_process_group and others, if an argument names xla
    torch.load               map_location="xla"
    torch.compile            a graph that creates tensors on xla

Each hook calls what torch_xla installs at its place, or the original if the caller does not use xla.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from torch_xla_autoload import device_guard, torch_names
from torch_xla_autoload.loading import is_active, load, on_removal


def install() -> None:
    """Install the hooks, once."""
    if is_active():
        return
    _install_kernels()
    _install_module()
    is_asked = functools.partial(_asks_for_accelerator, torch_names.built_accelerator())
    for owner, name in (*torch_names.accelerator_functions(), *torch_names.available_device_type()):
        _wrap(owner, name, is_asked)
    for owner, name in _functions_with_a_device():
        _wrap(owner, name, _names_xla)
    for owner, name in torch_names.default_compiler():
        _wrap(owner, name, _has_xla_tensors)
    torch.serialization.register_package(28, lambda storage: None, _deserialize)
    device_guard.load_library()


def _functions_with_a_device() -> Iterator[tuple[Any, str]]:
    yield from ((torch.nn.Module, "to"), (torch.nn.Module, "to_empty"))
    yield from torch_names.restore_location()
    if torch.distributed.is_available():
        from torch.distributed import device_mesh, distributed_c10d

        for name in ("init_process_group", "get_default_backend_for_device", "is_backend_available"):
            yield from ((owner, name) for owner in (torch.distributed, distributed_c10d) if hasattr(owner, name))
        yield from ((device_mesh, "init_device_mesh"), (torch.distributed, "init_device_mesh"))
        yield device_mesh.DeviceMesh, "__init__"
    yield from torch_names.fake_tensor_constructor()


def _wrap(owner: Any, name: str, uses_xla: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> None:
    """Make a function load torch_xla if its arguments, or its caller, use xla."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if uses_xla(args, kwargs):
            load()
            current = getattr(owner, name)
            if current is not call:
                return current(*args, **kwargs)
        return original(*args, **kwargs)

    def restore() -> None:
        if getattr(owner, name) is call:
            setattr(owner, name, original)

    if uses_xla is not _names_xla:  # the others look at frames and at graphs
        torch_names.skip_frames_of(call)
    setattr(owner, name, call)
    on_removal(restore)


def _names_xla(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        if isinstance(value, str):
            if "xla" in value or value.startswith("pjrt:"):
                return True
        elif isinstance(value, torch.device) and value.type == "xla":
            return True
    return False


def _asks_for_accelerator(built: torch.device | None, args: Any, kwargs: Any) -> bool:
    if not is_active() or built is not None and torch.get_device_module(built).is_available():
        return False
    frame, depth = sys._getframe(2), 3
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_PASSED):
        frame, depth = frame.f_back, depth + 1
    return not str(frame.f_globals.get("__name__")).startswith("torch.") and _can_load(depth + 1)


_PASSED = ("torch.accelerator", "torch_xla_autoload", "torch._utils")


def _can_load(depth: int) -> bool:
    """Load torch_xla; warn at a frame and return False if that fails, since the caller need not want xla."""
    try:
        load()
    except Exception as error:
        warnings.warn(
            f"torch.accelerator does not offer xla, because torch_xla cannot be loaded: {error}. Set "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 to not load it.",
            RuntimeWarning,
            stacklevel=depth,
        )
        return False
    return True


def _has_xla_tensors(args: tuple[Any, ...], kwargs: Any) -> bool:
    """Whether the graph that torch.compile passes to its default backend creates tensors on xla."""
    if not is_active():
        return False
    for node in args[1].graph.nodes:
        made = node.meta.get("example_value", node.meta.get("val"))
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                return True
    return False


def _deserialize(storage: Any, location: str) -> Any:
    if not location.startswith("xla") or not is_active():
        return None
    load()
    return torch.serialization.default_restore_location(storage, location)


def _install_kernels() -> None:
    library = [torch.library.Library("aten", "IMPL")]
    running: list[Any] = []  # references to kernels, which are removed while they run

    def wait_for(name: str) -> None:
        def run(*args: Any, **kwargs: Any) -> Any:
            running.append(torch_names.kernel(f"aten::{name}", "XLA"))
            load()
            packet, _, overload = name.partition(".")
            return getattr(getattr(torch.ops.aten, packet), overload or "default")(*args, **kwargs)

        torch_names.skip_frames_of(run)
        library[0].impl(name, run, "XLA")

    # Each tensor begins as one of these. A fallback for all operators would take ten times as long to register.
    for name in ("empty.memory_format", "empty_strided", "_efficientzerotensor"):
        wait_for(name)
    on_removal(library.clear)


class _LazyModule(ModuleType):
    """The module ``torch.xla`` until torch_xla is loaded; references to it then give the names of the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'torch.xla' has no attribute {name!r}")
        load()
        return getattr(sys.modules["torch.xla"], name)


def _install_module() -> None:
    module = _LazyModule("torch.xla")
    torch_names.register_device_module("xla", module)

    def remove() -> None:
        if getattr(torch, "xla", None) is module:
            delattr(torch, "xla")
            del sys.modules["torch.xla"]

    on_removal(remove)
