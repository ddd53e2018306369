"""Serialize xla tensors into files and other processes: by value, with the name of their device.

torch pickles a device tensor without storage as a CPU copy and the device's name. This module adds what is missing, by
wrapping names that are private to torch (compat/serialization.py) or have no hook:

    Tensor._reduce_ex_internal       a leaf that requires grad could not be loaded
    torch.save                       a tensor saved together with a view of it raises, as documented
    torch._utils._get_restore_location   map_location functions; a device that does not exist
    torch.serialization._legacy_load, torch._utils._rebuild_device_tensor_from_cpu_tensor   files from before 1.6,
                                     which contain the values after the tensors
    torch.serialization.register_package (public)   files of other devices with map_location="xla"
    multiprocessing's ForkingPickler (public)       queues, pipes and arguments of processes
"""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from torch_xla._engine import recorder
from torch_xla._engine.compat import imported_names, serialization
from torch_xla._engine.device import devices
from torch_xla._engine.execution import barrier

#: The result of __reduce_ex__: a function and its arguments.
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


class SaveContext:
    """State of one torch.save call: lives during the call, on its thread."""

    def __init__(self, older: bool) -> None:
        self._older = older
        self._owner: dict[int, int] = {}  # storage -> the tensor that was saved first
        self._copies: dict[int, torch.Tensor] = {}  # tensor -> its values on the CPU
        self._cut: set[int] = set()

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values on the CPU, one copy per tensor. Raises RuntimeError for a view of another saved tensor."""
        if self._older:
            raise RuntimeError(
                "torch.save: the legacy format (_use_new_zipfile_serialization=False) does not support xla tensors "
                f"({tensor.dtype}{list(tensor.shape)} on {tensor.device}): it stores values after tensors, but "
                "torch.load moves tensors to their device first. Remove that argument, or save tensor.cpu()."
            )
        self._run_pending(tensor.device.index)
        module = recorder.bindings()
        memory = module.storage_id(tensor)
        if memory == 0:
            return tensor.detach().cpu()
        number = module.tensor_id(tensor)
        first = self._owner.setdefault(memory, number)
        if first != number:
            raise RuntimeError(
                f"Tensor ID {number} is sharing a view with tensor ID {first}\n  torch.save: a tensor "
                f"({tensor.dtype}{list(tensor.shape)} on {tensor.device}) shares memory with another one in the same "
                "file. xla tensors are saved by value, so the loaded tensors would not share memory. Save clone() of "
                "one of them, or move the tensor to the CPU with .cpu() and save that with its views (xm.save copies "
                "everything to the CPU)."
            )
        if number not in self._copies:
            self._copies[number] = tensor.detach().cpu()
        return self._copies[number]

    def _run_pending(self, device: int) -> None:
        # Run one graph for all tensors to save, not one for each tensor.
        if device not in self._cut:
            self._cut.add(device)
            if recorder.bindings().pending_count(device):
                barrier.flush_graph(device)


class _Thread(threading.local):
    saving: SaveContext | None = None
    awaited: list[tuple[torch.Tensor, torch.Tensor]] | None = None  # of a legacy file: see _load_older


_thread = _Thread()


@contextmanager
def _save_scope(older: bool) -> Iterator[None]:
    before, _thread.saving = _thread.saving, SaveContext(older)
    try:
        yield
    finally:
        _thread.saving = before


def _reduce(original: Callable[..., Reduced], tensor: torch.Tensor, protocol: Any) -> Reduced:
    if tensor.device.type != "xla" or serialization.is_skip_data():
        return original(tensor, protocol)
    torch.utils.hooks.warn_if_has_hooks(tensor)
    values = tensor.detach().cpu() if _thread.saving is None else _thread.saving.values(tensor)
    arguments = (values, tensor.dtype, str(tensor.device), tensor.requires_grad)
    return serialization.rebuild_function(), arguments


def _load_older(original: Callable[..., Any], file: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a legacy file, which stores values after tensors: fill in tensors that were created before their values."""
    before = _thread.awaited, serialization.map_location()
    _thread.awaited = []
    serialization.set_map_location(map_location)  # torch sets it only for the zip format
    try:
        loaded = original(file, map_location, *args, **kwargs)
        for tensor, values in _thread.awaited:
            tensor.data.copy_(values)
    finally:
        _thread.awaited = before[0]
        serialization.set_map_location(before[1])
    return loaded


def _load_zip(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Load a file; torch does not reset the map_location of this thread if that fails."""
    before = serialization.map_location()
    try:
        return original(*args, **kwargs)
    except BaseException:
        serialization.set_map_location(before)
        raise


def _rebuild_on_device(original: Callable[..., Any], values: torch.Tensor, *args: Any) -> Any:
    tensor = original(values, *args)
    if _thread.awaited is not None and tensor.device.type == "xla":
        _thread.awaited.append((tensor, values))
    return tensor


def _check(device: Any, source: str = "map_location names") -> Any:
    """Return ``device``. Raises RuntimeError for an xla device that does not exist."""
    place = torch.device(device)
    if place.type == "xla" and place.index is not None and place.index >= devices.count():
        count = devices.count()
        raise RuntimeError(
            f"torch.load: {source} {place}, which does not exist: this process has {count} xla "
            f"device{'s'[: count != 1]} (xla:0{f' to xla:{count - 1}' if count > 1 else ''}). Pass "
            "map_location='xla:0' or map_location='cpu'."
        )
    return device


def _restore_location(original: Callable[[Any], Any], device: Any) -> Any:
    """Return the device to which torch.load moves a tensor that was saved on ``device``."""
    where = serialization.map_location()
    if not str(device).startswith("xla"):
        return original(device)
    if where is None or isinstance(where, (dict, str, torch.device)):
        target = original(device)
        is_saved_device = torch.device(target) == torch.device(device)
        return _check(target, "the file has a tensor on" if is_saved_device else "map_location names")
    storage: Any = where(torch.UntypedStorage(0), str(device))  # as for other devices: (storage, location)
    return _check(device if storage is None else storage.device)


class LoadingStorage(torch.UntypedStorage):
    """A storage that torch.load has read, for a tensor on xla: torch reads its device, and calls ``set_`` there."""

    destination: torch.device
    is_used = False  # a tensor was created from it

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The xla device."""
        self.is_used = True
        return self.destination

    def _set_from_file(self, *args: Any) -> Any:
        if not self.is_used:
            # A bare storage, as pickle stores it for a CPU tensor: it stays on the CPU, as do tensors created from it.
            self.__class__ = torch.UntypedStorage  # type: ignore[assignment]
            return self._set_from_file(*args)
        raise RuntimeError(
            "torch.load: cannot load a file in torch's format from before 1.6 onto xla directly, because it stores "
            "values after tensors; use map_location='cpu', then .to('xla')"
        )


def _deserialize(storage: Any, location: str) -> Any:
    if not location.startswith("xla"):
        return None
    _check(location)
    storage.__class__ = LoadingStorage
    storage.destination = torch.device(location)
    return storage


def _rebuild(kind: type, file: bytes, device: str, requires_grad: bool) -> torch.Tensor:
    tensor: torch.Tensor = torch.load(io.BytesIO(file)).to(device)
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce_for_process(tensor: torch.Tensor) -> Any:
    """Pickle a tensor for queues, pipes and process arguments: its bytes.

    CPU tensors are passed in shared memory, which requires that the sender outlives it; here that would save no copy.
    """
    if tensor.device.type != "xla" or (tensor.requires_grad and not tensor.is_leaf):
        return reductions.reduce_tensor(tensor)
    file = io.BytesIO()
    torch.save(tensor.detach().cpu(), file)
    return _rebuild, (type(tensor), file.getvalue(), str(tensor.device), tensor.requires_grad)


def patch_serialization() -> None:
    """Wrap the names above, once."""
    original_save = torch.serialization.save
    if getattr(original_save, "_torch_xla", False):
        return

    @functools.wraps(original_save)
    def save(*args: Any, **kwargs: Any) -> None:
        newer = args[4] if len(args) > 4 else kwargs.get("_use_new_zipfile_serialization", True)
        with _save_scope(older=not newer):
            original_save(*args, **kwargs)

    save._torch_xla = True  # type: ignore[attr-defined]
    torch.save = torch.serialization.save = save
    imported_names.add_replacement(original_save, save)
    serialization.wrap_reduce(_reduce)
    serialization.wrap_legacy_load(_load_older)
    serialization.wrap_zip_load(_load_zip)
    serialization.wrap_rebuild(_rebuild_on_device)
    serialization.wrap_restore_location(_restore_location)
    torch.serialization.register_package(27, lambda storage: None, _deserialize)
    ForkingPickler.register(torch.Tensor, _reduce_for_process)
    ForkingPickler.register(torch.nn.Parameter, _reduce_for_process)
