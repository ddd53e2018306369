"""Load batches onto xla devices in the background: ``MpDeviceLoader``, and ``ParallelLoader`` for several devices."""

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

#: Loaders whose read position is not observable: they are prefetched. Subclasses of DataLoader may expose it.
_UNCHANGED = (DataLoader, list, tuple)


class ParallelLoader:
    """One pass over a loader that distributes its batches over devices: batch ``i`` goes to device ``i % n``.

    Background threads read and send batches ahead of the devices. A last group of fewer than ``n`` batches is dropped,
    so that every device gets the same number. Create a new ParallelLoader for each epoch (MpDeviceLoader does).

    One kind of loader is read on demand, by the thread that requests a batch, while the device computes the previous
    step: a loader for a single device that is not a plain DataLoader, list or tuple. Its state (position, whether this
    was the last batch: accelerate's loaders, StatefulDataLoader, generators) then describes the batch that was returned
    last. Pass ``loader_prefetch_size`` to prefetch it nevertheless.

    A prefetched batch is copied on the host before the next one is requested, because the loader may reuse its memory.
    Loaders that are known to allocate each batch are not copied: lists, tuples, and DataLoaders with worker processes
    or torch's default ``collate_fn``.

    The threads end when the pass is over, when ``close()`` is called, and when this object and its per-device loaders
    are garbage-collected, also in the middle of the pass.

    Args:
      cpu_loader: any iterable; batches are tensors in dicts, lists, tuples or objects.
      devices: xla devices, each a ``torch.device`` or a string.
      batchdim: the batch dimension, for ``fixed_batch_size``.
      batches_per_execution: number of batches between step barriers.
      loader_prefetch_size: number of batches prefetched on the host, per device; default with prefetching: 16.
      device_prefetch_size: number of batches prefetched on each device.
      host_to_device_transfer_threads: number of threads that send batches, per device. The order is preserved.
      input_sharding: with SPMD, the sharding of a batch's tensors: a ``spmd.ShardingSpec``, or for batches that are
        dicts a dict of specs (None: replicated). Tensors of another rank are replicated. With ``minibatch`` in a job of
        several processes, a batch that cannot be split evenly raises ValueError: use drop_last.
      fixed_batch_size: end the pass at the first batch of another size.

    Raises:
      ValueError: a size is below 1, or the devices are not distinct xla devices.
      TypeError: ``input_sharding`` is of another type.

    Examples:
      With ``CPU_NUM_DEVICES=4``, two of them:

      >>> import torch
      >>> import torch_xla.distributed.parallel_loader as pl
      >>> batches = [torch.full((2,), i) for i in range(4)]
      >>> loader = pl.ParallelLoader(batches, ["xla:0", "xla:1"])
      >>> [batch.tolist() for batch in loader.per_device_loader("xla:1")]
      [[1, 1], [3, 3]]
      >>> loader.close()
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
        weakref.finalize(self, self._feed.close, prefetch.MOMENT).atexit = False  # at exit, prefetch closes all feeds

    def per_device_loader(self, device: torch.device | str) -> PerDeviceLoader:
        """Return the iterator over the batches of one of the devices.

        Args:
          device: one of the loader's devices.

        Raises:
          ValueError: another device.
        """
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """Return the number of batches per device.

        Raises:
          TypeError: the wrapped loader has no length.
        """
        return len(self._cpu_loader) // len(self._devices)  # type: ignore[arg-type]

    def batches_per_execution(self) -> int:
        """Return the number of batches between step barriers."""
        return self._batches_per_execution

    def next_item(self, device: torch.device | str) -> Any:
        """Return a device's next batch without a barrier; None at the end. Raises errors of loading and sending.

        Args:
          device: one of the loader's devices.
        """
        try:
            return self._feed.get(self._position(device))
        except ChannelClosed:
            return None

    def close(self) -> None:
        """End the pass and its threads; the per-device loaders are then exhausted."""
        self._feed.close()

    def _position(self, device: torch.device | str) -> int:
        device = _with_index(torch.device(device))
        if device not in self._devices:
            names = ", ".join(map(str, self._devices))
            raise ValueError(f"ParallelLoader: {device} is not one of the loader's devices ({names})")
        return self._devices.index(device)


class PerDeviceLoader:
    """Iterator over one device's batches. Each ``next`` runs the step barrier of the previous step, then waits.

    Args:
      loader: the ParallelLoader.
      device: one of its devices.
    """

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
        """Return the next batch, on the device. Raises StopIteration at the end, and errors of loading and sending."""
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
        """Stop this device's batches; the loader's other devices continue."""
        self._over = True
        self._loader._feed.close_device(self._position)

    def _barrier(self) -> None:
        with device_module.device(self._device), sync_reasons.sync_reason(sync_reasons.LOADER):
            barrier.mark_step()


class MpDeviceLoader:
    """A loader whose batches are on a device; can be iterated repeatedly. ``len`` and attributes are the wrapped one's.

    Each ``next`` is a step barrier, so a training loop needs no other. An attribute that is assigned is stored in this
    object and hides the wrapped loader's.

    Args:
      loader: the wrapped loader.
      device: an xla device; default: the current one.
      kwargs: arguments of [ParallelLoader][torch_xla.distributed.parallel_loader.ParallelLoader].

    Examples:
      >>> import torch
      >>> from torch.utils.data import DataLoader, TensorDataset
      >>> import torch_xla.distributed.parallel_loader as pl
      >>> data = TensorDataset(torch.arange(6.0), torch.arange(6))
      >>> loader = pl.MpDeviceLoader(DataLoader(data, batch_size=2), "xla")
      >>> for images, labels in loader:  # each batch ends the previous step
      ...     print(labels.device, labels.tolist())
      xla:0 [0, 1]
      xla:0 [2, 3]
      xla:0 [4, 5]
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
        # Special methods (copy and pickle look them up) are not forwarded.
        if "_loader" not in self.__dict__ or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)


def _placement_function(input_sharding: Any) -> Callable[[Any, torch.device], Any]:
    """Return the function that sends a batch to a device. Raises TypeError for an invalid sharding specification."""
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
            f"ParallelLoader: input_sharding has no entry for {', '.join(unknown)}; use None to replicate a tensor"
        )
    return batch_structure.mapping_like(batch, {key: places[key](value, device) for key, value in batch.items()})


def _with_index(device: torch.device) -> torch.device:
    """Return the device with its ordinal: ``xla`` without an ordinal is the current device."""
    index = device_module.current_device() if device.index is None else device.index
    return torch.device(device.type, index)


def _validate_devices(devices: Sequence[torch.device | str]) -> tuple[torch.device, ...]:
    checked = tuple(_with_index(torch.device(device)) for device in devices)
    if not checked or any(device.type != "xla" for device in checked) or len(set(checked)) < len(checked):
        names = ", ".join(map(str, checked)) or "none"
        raise ValueError(f"ParallelLoader: expected distinct xla devices, got {names}")
    return checked
