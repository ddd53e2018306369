"""``dp.DataParallel``: trains a model on several devices of one process, a thread for each.

Processes (``torch_xla.distributed.xla_multiprocessing.spawn``) use a host better, because Python runs one thread at a
time. This is the interface of 2019, for programs that require a single process.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from torch_xla._engine import recorder
from torch_xla._engine.device import devices as _devices
from torch_xla._engine.execution import executor
from torch_xla._engine.job import thread_group
from torch_xla.distributed._enumerated_loader import EnumeratedLoader, expects_enumerated
from torch_xla.distributed.parallel_loader import ParallelLoader, PerDeviceLoader

T = TypeVar("T")


class Context:
    """State of a device's training loop that lasts between calls: set attributes freely.

    Args:
      device: the device of the loop.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: T | Callable[[], T]) -> T:
        """Return the attribute; if it is unset, set it to ``defval``, or to the result of ``defval()``.

        Args:
          name: the name of the attribute.
          defval: a value, or a function that makes it.
        """
        if not hasattr(self, name):
            setattr(self, name, defval() if callable(defval) else defval)
        value: T = getattr(self, name)
        return value


@dataclass
class ThreadResult:
    """The return value of a thread's loop."""

    result: Any = None


class DataParallel:
    """Copies of a model on several devices, trained together by one thread per device.

        model_parallel = dp.DataParallel(Net, device_ids=xm.get_xla_supported_devices())
        results = model_parallel(train_loop_fn, loader)  # train_loop_fn(model, loader, device, context)

    The copies start equal and remain equal: ``xm.optimizer_step`` averages the gradients over the devices.

    Args:
      network: a module, or a function without arguments that returns one.
      device_ids: xla devices; default: all of this process. ``[]`` runs the module itself, in this thread and in native
        PyTorch, on the device of its parameters (the CPU, if it has none).
      batchdim: the batch dimension, for ``fixed_batch_size``.

    Examples:
      With ``CPU_NUM_DEVICES=4``; each thread trains on a quarter of the batches:

      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> import torch_xla.distributed.data_parallel as dp
      >>> def train(model, loader, device, context):
      ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      ...     batches = 0
      ...     for batch in loader:
      ...         optimizer.zero_grad()
      ...         model(batch).sum().backward()
      ...         xm.optimizer_step(optimizer)
      ...         batches += 1
      ...     return batches
      >>> parallel = dp.DataParallel(torch.nn.Linear(2, 1))
      >>> parallel(train, [torch.ones(8, 2)] * 12)
      [3, 3, 3, 3]
    """

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        device_ids: Sequence[torch.device | str] | None = None,
        batchdim: int = 0,
    ) -> None:
        if device_ids is None:
            device_ids = [f"xla:{i}" for i in range(len(_devices.devices()))]
        self._batchdim = batchdim
        self._device_ids = [torch.device(device) for device in device_ids]
        if any(device.type != "xla" for device in self._device_ids):
            raise ValueError(f"DataParallel: device_ids={[str(d) for d in self._device_ids]} must be xla devices")
        self._device_ids = [torch.device("xla", device.index or 0) for device in self._device_ids]
        module = network if isinstance(network, nn.Module) else network()
        if self._device_ids:
            self._models = [copy.deepcopy(module).to(device) for device in self._device_ids]
            self._contexts = [Context(device) for device in self._device_ids]
        else:
            self._models, self._contexts = [module], [Context(_native_device(module))]

    @property
    def devices(self) -> list[str]:
        """The names of the devices, in order; empty for a native run."""
        return [str(device) for device in self._device_ids]

    @property
    def models(self) -> list[nn.Module]:
        """The copy of the model on each device, in the same order; for a native run the module itself."""
        return self._models

    def __call__(
        self,
        loop_fn: Callable[..., Any],
        loader: Iterable[Any],
        batchdim: int | None = None,
        fixed_batch_size: bool = False,
        **options: Any,
    ) -> list[Any]:
        """Call ``loop_fn(model, loader, device, context)`` for each device, in one thread per device.

        Each thread gets an iterator over its batches, on its device; each ``next`` is a step barrier. Batch ``i`` goes
        to device ``i % n``, and a last group of fewer than ``n`` batches is dropped. A native run gets ``loader``
        itself. A 2019-style loop, ``for i, (data, target) in loader``, gets its batches with their numbers.

        Args:
          loop_fn: the training loop.
          loader: yields batches of CPU tensors.
          batchdim, fixed_batch_size, options: as in ParallelLoader.

        Returns:
          The results of the calls, in the order of the devices. If one raises, the others are stopped at their next
          batch or collective, and its error is raised with that thread's traceback.
        """
        if not self._device_ids:
            context = self._contexts[0]
            return [loop_fn(self._models[0], _maybe_enumerate(loader, loop_fn), context.device, context)]
        executor.for_each_device(executor.wait_device)
        dim = self._batchdim if batchdim is None else batchdim
        batches = ParallelLoader(loader, self._device_ids, dim, fixed_batch_size=fixed_batch_size, **options)
        run = _ThreadedRun(self._device_ids, batches)
        try:
            for i, model in enumerate(self._models):
                run.start(i, loop_fn, model, self._contexts[i])
            return run.results()
        finally:
            run.stop()


class _ThreadedRun:
    """One call, one thread per device. running -> ended (all returned, or one raised and the others have stopped).

    Owns the threads and the pass over the loader; ends both.
    """

    def __init__(self, devices: Sequence[torch.device], batches: ParallelLoader) -> None:
        self._devices, self._batches = devices, batches
        self._group = thread_group.ThreadGroup(len(devices), executor.sync_device, _compute)
        self._threads: list[threading.Thread] = []
        self._results = [ThreadResult() for _ in devices]
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._ended = threading.Semaphore(0)

    def start(self, position: int, loop_fn: Callable[..., Any], model: nn.Module, context: Context) -> None:
        loader = self._batches.per_device_loader(self._devices[position])
        thread = threading.Thread(
            target=self._work,
            args=(position, loop_fn, model, loader, context),
            name=f"torch_xla replica {position}",
            daemon=True,
        )
        self._threads.append(thread)
        thread.start()

    def _work(
        self, position: int, loop_fn: Callable[..., Any], model: nn.Module, loader: PerDeviceLoader, context: Context
    ) -> None:
        ordinals = [device.index for device in self._devices]
        recorder.bindings().set_current_device(ordinals[position])
        try:
            with thread_group.thread_replica(self._group, ordinals, position):
                self._results[position].result = loop_fn(
                    model, _maybe_enumerate(loader, loop_fn), context.device, context
                )
            loader.close()  # batches of the other devices must not wait for this thread
        except BaseException as error:
            with self._lock:
                # A thread that was aborted in a collective is not the cause, even if it is first.
                if self._error is None or isinstance(self._error, thread_group.AbandonedError):
                    self._error = error
            self._batches._feed.close(0)
        finally:
            self._ended.release()

    def results(self) -> list[Any]:
        """Wait for all threads. Raises the error of the one that failed."""
        for _ in self._threads:
            self._ended.acquire()
        if self._error is not None:
            raise self._error
        return [one.result for one in self._results]

    def stop(self) -> None:
        """End the loading, and running threads at their next batch (after Ctrl-C)."""
        for position in range(len(self._devices)):
            self._group.leave(position, "was stopped")
        self._batches.close()
        for thread in self._threads:
            thread.join(_PATIENCE)


#: Seconds that an interrupted call waits for its threads.
_PATIENCE = 10.0


def _maybe_enumerate(loader: Any, loop_fn: Callable[..., Any]) -> Any:
    return EnumeratedLoader(loader) if expects_enumerated(loop_fn) else loader


def _compute(tensors: Sequence[torch.Tensor]) -> None:
    device = tensors[0].device.index
    executor.materialize(recorder.bindings().nodes_of(list(tensors)), device)


def _native_device(module: nn.Module) -> torch.device:
    found = sorted({str(parameter.device) for parameter in module.parameters()})
    if len(found) > 1:
        raise RuntimeError(f"Model uses more than one device: {found}")
    return torch.device(found[0] if found else "cpu")
