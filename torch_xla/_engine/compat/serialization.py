"""How torch.save and torch.load take tensors apart and put them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compat import versions
from torch_xla._engine.compat.private_api import PrivateApi

_REDUCE = PrivateApi(
    "torch",
    "Tensor._reduce_ex_internal",
    "torch.save of xla tensors, leaves that require grad among them",
    "torch.save takes xla tensors apart as it can: a leaf that requires grad may not load again",
)
_REBUILD = PrivateApi(
    "torch._utils",
    "_rebuild_device_tensor_from_cpu_tensor",
    "the function by which files name a tensor of a device, as torch writes them for other devices",
    "torch.save of an xla tensor raises, and says why",
)
_LEGACY = PrivateApi(
    "torch.serialization",
    "_legacy_load",
    "torch.load of files from before torch 1.6",
    "xla tensors in files from before torch 1.6 have no values",
)
_LOCATION = PrivateApi(
    "torch._utils",
    "_get_restore_location",
    "map_location as a function; a device that does not exist",
    "torch.load ignores map_location for xla tensors where it is a function",
)
_STATE = PrivateApi(
    "torch.serialization",
    "_serialization_tls",
    "what the torch.load or torch.save that is running was told",
    "torch.save and torch.load of xla tensors raise, and say why",
)
_GLOBALS = PrivateApi(
    "torch._weights_only_unpickler",
    "_get_allowed_globals",
    "torch.load(weights_only=True) knows the function of that name that is there now",
    "a file that was loaded before torch_xla was imported makes torch.load refuse xla tensors",
)


def wrap_reduce(ours: Callable[..., Any]) -> None:
    """How a tensor is pickled becomes ``ours(original, tensor, protocol)``."""
    _REDUCE.wrap(ours)


def wrap_rebuild(ours: Callable[..., Any]) -> None:
    """How a tensor of a device is made of its values becomes ``ours(original, values, *args)``."""
    _REBUILD.wrap(ours)
    cached = _GLOBALS.resolve_or_none()
    if hasattr(cached, "cache_clear"):
        cached.cache_clear()  # it may have kept torch's function of that name


def rebuild_function() -> Any:
    """The function that makes a tensor of a device: (values on the CPU, dtype, device, requires_grad)."""
    return _REBUILD.resolve()


def wrap_legacy_load(ours: Callable[..., Any]) -> None:
    """torch.load of a file from before 1.6 becomes ``ours(original, file, map_location, *args, **kwargs)``."""
    _LEGACY.wrap(ours)


def wrap_restore_location(ours: Callable[..., Any]) -> None:
    """Where torch.load puts a tensor that was saved on a device becomes ``ours(original, device)``."""
    _LOCATION.wrap(ours)


def is_skip_data() -> bool:
    """Whether the torch.save that is running writes no values (torch.serialization.skip_data)."""
    return bool(_STATE.resolve().skip_data)


def map_location() -> Any:
    """The argument of the torch.load that is running."""
    return _STATE.resolve().map_location


def set_map_location(where: Any) -> None:
    """Has the torch.load that is running take another argument."""
    _STATE.resolve().map_location = where


# Public since 2.15, where the old name warns.
_FSSPEC = "torch.distributed.checkpoint." + ("_" if versions.is_before("2.15") else "") + "fsspec_filesystem"
_FSSPEC_WRITER = PrivateApi(
    _FSSPEC,
    "FsspecWriter",
    "checkpoints under paths such as gs://",
    "a CheckpointManager for such a path raises, and says why",
    optional=True,
)
_FSSPEC_READER = PrivateApi(
    _FSSPEC,
    "FsspecReader",
    "as the one before",
    "as the one before",
    optional=True,
)


def fsspec_writer() -> type:
    """torch.distributed.checkpoint's writer for paths of fsspec."""
    found: type = _FSSPEC_WRITER.resolve()
    return found


def fsspec_reader() -> type:
    """torch.distributed.checkpoint's reader for paths of fsspec."""
    found: type = _FSSPEC_READER.resolve()
    return found
