"""Private hooks of torch.save and torch.load: reduction and reconstruction of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compat import versions
from torch_xla._engine.compat.private_api import PrivateApi

_REDUCE = PrivateApi(
    "torch",
    "Tensor._reduce_ex_internal",
    "torch.save of xla tensors, including leaves that require grad",
    "a saved leaf that requires grad may not load again",
)
_REBUILD = PrivateApi(
    "torch._utils",
    "_rebuild_device_tensor_from_cpu_tensor",
    "the reconstruction function that files refer to, the same as for other devices",
    "torch.save of an xla tensor raises",
)
_LEGACY = PrivateApi(
    "torch.serialization",
    "_legacy_load",
    "torch.load of files from before torch 1.6",
    "xla tensors in files from before torch 1.6 have no values",
)
_ZIP = PrivateApi(
    "torch.serialization",
    "_load",
    "a failed torch.load that leaves no map_location behind",
    "after a failed torch.load(map_location=...), copies of xla tensors use its map_location",
)
_LOCATION = PrivateApi(
    "torch._utils",
    "_get_restore_location",
    "map_location functions, and an error for devices that do not exist",
    "torch.load ignores map_location functions for xla tensors",
)
_STATE = PrivateApi(
    "torch.serialization",
    "_serialization_tls",
    "the arguments of the running torch.load or torch.save",
    "torch.save and torch.load of xla tensors raise",
)
_GLOBALS = PrivateApi(
    "torch._weights_only_unpickler",
    "_get_allowed_globals",
    "torch.load(weights_only=True) of the wrapped reconstruction function",
    "torch.load rejects xla tensors if a file was loaded before torch_xla was imported",
)


def wrap_reduce(wrapper: Callable[..., Any]) -> None:
    """Wrap the pickling of a tensor: ``wrapper(original, tensor, protocol)``."""
    _REDUCE.wrap(wrapper)


def wrap_rebuild(wrapper: Callable[..., Any]) -> None:
    """Wrap the construction of a device tensor from its values: ``wrapper(original, values, *args)``."""
    _REBUILD.wrap(wrapper)
    cached = _GLOBALS.resolve_or_none()
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()  # it may have cached torch's function of that name


def rebuild_function() -> Any:
    """Return the function that builds a device tensor: (values on the CPU, dtype, device, requires_grad)."""
    return _REBUILD.resolve()


def wrap_legacy_load(wrapper: Callable[..., Any]) -> None:
    """Wrap torch.load of files from before torch 1.6: ``wrapper(original, file, map_location, *args, **kwargs)``."""
    _LEGACY.wrap(wrapper)


def wrap_zip_load(wrapper: Callable[..., Any]) -> None:
    """Wrap torch.load of files from torch 1.6 or later: ``wrapper(original, *args, **kwargs)``."""
    _ZIP.wrap(wrapper)


def wrap_restore_location(wrapper: Callable[..., Any]) -> None:
    """Wrap the mapping of saved devices in torch.load: ``wrapper(original, device)``."""
    _LOCATION.wrap(wrapper)


def is_skip_data() -> bool:
    """Whether the running torch.save writes no values (torch.serialization.skip_data)."""
    return bool(_STATE.resolve().skip_data)


def map_location() -> Any:
    """Return the map_location argument of the running torch.load."""
    return _STATE.resolve().map_location


def set_map_location(where: Any) -> None:
    """Replace the map_location argument of the running torch.load."""
    _STATE.resolve().map_location = where


# Public since torch 2.15, where the old name warns.
_FSSPEC = "torch.distributed.checkpoint." + ("_" if versions.is_before("2.15") else "") + "fsspec_filesystem"
_FSSPEC_WRITER = PrivateApi(
    _FSSPEC,
    "FsspecWriter",
    "checkpoints under paths such as gs://",
    "a CheckpointManager for such a path raises",
    optional=True,
)
_FSSPEC_READER = PrivateApi(
    _FSSPEC,
    "FsspecReader",
    _FSSPEC_WRITER.purpose,
    _FSSPEC_WRITER.without,
    optional=True,
)


def fsspec_writer() -> type:
    """Return torch.distributed.checkpoint's writer for fsspec paths."""
    found: type = _FSSPEC_WRITER.resolve()
    return found


def fsspec_reader() -> type:
    """Return torch.distributed.checkpoint's reader for fsspec paths."""
    found: type = _FSSPEC_READER.resolve()
    return found
