"""Loads batches onto xla devices in the background: ``MpDeviceLoader``, and ``ParallelLoader`` for several devices."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from torch_xla._engine.data_loading import batch_structure, on_demand, prefetch
from torch_xla._engine.data_loading.channel import ChannelClosed
from torch_xla._engine.diagnostics import sync_reasons
from torch_xla._engine.execution import barrier
from torch_xla._engine.torch_patches import device_module
from torch_xla.distributed.spmd import ShardingSpec

#: Loaders that nobody can tell how far they have been read: they are read ahead. DataLoader's subclasses may say it.
_UNCHANGED = (DataLoader, list, tuple)


class ParallelLoader:
    """One pass over a loader, its batches dealt out to devices in turn: batch ``i`` goes to device ``i % n``.

    Reading and sending run in background threads, ahead of the devices. A last group of fewer than ``n`` batches is
    dropped, so that every device gets the same number. Make a new one for each epoch (MpDeviceLoader does).

    One kind of loader is read by the thread that asks for a batch, when it does, while the device computes the step
    before: a loader for one device that is no plain DataLoader, list or tuple. What it says of itself (how far it is,
    whether this was the last batch: accelerate's loaders, StatefulDataLoader, generators) is true of the batch that was
    given out. Give ``loader_prefetch_size`` to have it read ahead all the same.

    A batch that is read ahead is copied on the host before the loader is asked for the next one, as it may refill the
    last one. What is known to allocate each batch is not copied: lists, tuples, and DataLoaders with worker processes
    or torch's own ``collate_fn``.

    The threads end when the pass is over, when ``close()`` is called, and when this object and its per-device loaders
    are gone, also in the middle of the pass.

    Args:
      cpu_loader: anything that can be iterated; batches are tensors in dicts, lists, tuples or objects.
      devices: xla devices, each ``torch.device`` or a string.
      batchdim: the dimension of the batch, for ``fixed_batch_size``.
      batches_per_execution: batches from one step barrier to the next.
      loader_prefetch_size: batches kept ready on the host, for each device; 16 where it is not given and reads ahead.
      device_prefetch_size: batches kept ready on each device.
      host_to_device_transfer_threads: threads that send, for each device. The order stays.
      input_sharding: with SPMD, how the tensors of a batch lie on the devices: a ``spmd.ShardingSpec``, or for batches
        that are dicts one for each key (None: on every device). Tensors of another rank are on every device. With
        ``minibatch`` among several processes a batch that cannot be split evenly is a ValueError: use drop_last.
      fixed_batch_size: end the pass at the first batch of another size.
    """

    def __init__(
        self,
        cpu_loader: Iterable[Any],
        devices: Sequence[torch.device | str],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int | None = None,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        fixed_batch_size: bool = False,
    ) -> None:
        ahead = loader_prefetch_size is not None or len(devices) != 1 or type(cpu_loader) in _UNCHANGED
        loader_prefetch_size = 16 if loader_prefetch_size is None else loader_prefetch_size
        counts = {
            "batches_per_execution": batches_per_execution,
            "loader_prefetch_size": loader_prefetch_size,
            "device_prefetch_size": device_prefetch_size,
            "host_to_device_transfer_threads": host_to_device_transfer_threads,
        }
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"ParallelLoader: {name} must be at least 1, got {value}")
        self._cpu_loader = cpu_loader
        self._devices = _validate_devices(devices)
        self._batches_per_execution = batches_per_execution
        plan = prefetch.PrefetchOptions(
            self._devices,
            batchdim=batchdim,
            fixed_batch_size=fixed_batch_size,
            loader_prefetch_size=loader_prefetch_size,
            device_prefetch_size=device_prefetch_size,
            transfer_threads=host_to_device_transfer_threads,
            place=_placement_function(input_sharding),
        )
        self._feed = prefetch.PrefetchFeed(cpu_loader, plan) if ahead else on_demand.OnDemandFeed(cpu_loader, plan)
        weakref.finalize(self, self._feed.close, prefetch.MOMENT).atexit = False  # the end of the process is feed's

    def per_device_loader(self, device: torch.device | str) -> PerDeviceLoader:
        """The iterator over the batches of one of the devices. ValueError for another device."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """The number of batches for each device. TypeError if the wrapped loader has no length."""
        return len(self._cpu_loader) // len(self._devices)  # type: ignore[arg-type]

    def batches_per_execution(self) -> int:
        """Batches from one step barrier to the next."""
        return self._batches_per_execution

    def next_item(self, device: torch.device | str) -> Any:
        """The next batch of a device, without a barrier; None at the end. Raises what loading or sending raised."""
        try:
            return self._feed.get(self._position(device))
        except ChannelClosed:
            return None

    def close(self) -> None:
        """Ends the pass and its threads; the per-device loaders are at their end then."""
        self._feed.close()

    def _position(self, device: torch.device | str) -> int:
        device = _with_index(torch.device(device))
        if device not in self._devices:
            names = ", ".join(map(str, self._devices))
            raise ValueError(f"ParallelLoader: {device} is not one of the loader's devices ({names})")
        return self._devices.index(device)


class PerDeviceLoader:
    """The iterator over one device's batches. Each ``next`` is a step barrier: it ends the step before, then waits."""

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = _with_index(device)
        self._position = loader._position(device)
        self._given = 0
        self._over = False

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The next batch, on the device. Raises StopIteration at the end, and what loading or sending raised."""
        if self._over:
            raise StopIteration
        if self._given % self._loader.batches_per_execution() == 0:
            self._barrier()
        try:
            batch = self._loader._feed.get(self._position)
        except BaseException as error:
            self._over = True
            if not isinstance(error, ChannelClosed):
                raise
            if self._given % self._loader.batches_per_execution() != 0:
                self._barrier()
            raise StopIteration from None
        self._given += 1
        return batch

    def close(self) -> None:
        """Takes no more batches; the loader's other devices go on."""
        self._over = True
        self._loader._feed.close_device(self._position)

    def _barrier(self) -> None:
        with device_module.device(self._device), sync_reasons.sync_reason(sync_reasons.LOADER):
            barrier.mark_step()


class MpDeviceLoader:
    """A loader whose batches arrive on a device, as often as one iterates; ``len`` and all else are the wrapped one's.

    Each ``next`` is a step barrier, so a training loop needs no other. Keyword arguments are those of ParallelLoader.
    An attribute that is assigned stays with this object and hides the wrapped loader's. Without a device it is the
    current one.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str | None = None, **kwargs: Any) -> None:
        self._loader = loader
        self._device = torch.device("xla") if device is None else torch.device(device)
        self._parallel_loader_kwargs = kwargs
        _validate_devices([self._device])

    def __iter__(self) -> Iterator[Any]:
        loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # Special methods (copying and pickling look for them) are this object's own.
        if "_loader" not in self.__dict__ or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)


def _placement_function(input_sharding: Any) -> Callable[[Any, torch.device], Any]:
    """What puts a batch on a device. TypeError for what says nothing of how tensors lie."""
    if input_sharding is None:
        return prefetch.to_device
    if isinstance(input_sharding, ShardingSpec):
        return functools.partial(prefetch.to_device, send=input_sharding.send)
    entries = list(input_sharding.values()) if isinstance(input_sharding, Mapping) else [input_sharding]
    for entry in entries:
        if entry is not None and not isinstance(entry, ShardingSpec):
            raise TypeError(
                f"ParallelLoader: input_sharding must be a ShardingSpec, a dict of them or None, got {entry!r}"
            )
    places = {key: _placement_function(entry) for key, entry in input_sharding.items()}
    return lambda batch, device: _by_key(batch, device, places)


def _by_key(batch: Any, device: torch.device, places: Mapping[Any, Callable[[Any, torch.device], Any]]) -> Any:
    if not isinstance(batch, Mapping):
        keys = ", ".join(map(str, places))
        raise TypeError(f"ParallelLoader: input_sharding has keys ({keys}), a batch is a {type(batch).__name__}")
    unknown = [str(key) for key in batch if key not in places]
    if unknown:
        raise ValueError(
            f"ParallelLoader: input_sharding says nothing of {', '.join(unknown)}; None puts a tensor on every device"
        )
    return batch_structure.mapping_like(batch, {key: places[key](value, device) for key, value in batch.items()})


def _with_index(device: torch.device) -> torch.device:
    """With its ordinal: ``xla`` alone means the current device."""
    index = device_module.current_device() if device.index is None else device.index
    return torch.device(device.type, index)


def _validate_devices(devices: Sequence[torch.device | str]) -> tuple[torch.device, ...]:
    checked = tuple(_with_index(torch.device(device)) for device in devices)
    if not checked or any(device.type != "xla" for device in checked) or len(set(checked)) < len(checked):
        names = ", ".join(map(str, checked)) or "none"
        raise ValueError(f"ParallelLoader: expected different xla devices, got {names}")
    return checked
