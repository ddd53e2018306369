"""Prefetch batches: threads read batches and transfer them to devices while the devices compute.

                   reader                    transfer threads                 consumers
    loader ──► groups of n batches ──► host channel of device i ──► device channel of device i ──► get(i)

The reader takes n batches at a time, one for each of the n devices, and drops an incomplete last group. It copies a
batch before it requests the next one, unless the loader is known to allocate each batch (``snapshots``).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.base import user_frames
from torch_xla._engine.compat import process_exit
from torch_xla._engine.data_loading import batch_structure, snapshots
from torch_xla._engine.data_loading.channel import Channel, ChannelClosed

#: Seconds that close() waits for the threads: short in the garbage collector, longer at process exit, where a thread
#: that is still inside torch's C++ would abort the process.
MOMENT, PATIENCE = 0.2, 10.0

_FORK_WARNING = r"os\.fork\(\) was called"


@dataclass(frozen=True)
class PrefetchOptions:
    """How to read and transfer batches. Sizes are numbers of batches per device."""

    devices: tuple[torch.device, ...]
    batchdim: int = 0
    fixed_batch_size: bool = False
    loader_prefetch_size: int = 16
    device_prefetch_size: int = 8
    transfer_threads: int = 1
    place: Callable[[Any, torch.device], Any] | None = None  # moves a batch to a device; default: to_device


class PrefetchFeed:
    """One pass over a loader. Owns its threads and the batches in flight.

        new  --start()-->  running  --close()-->  closed        new --close()--> closed

    The threads refer to the PrefetchFeed and never to the user's iterator, so that the death of that iterator can close
    the feed. They also end by themselves when the loader is exhausted and all batches have been taken.
    """

    def __init__(self, loader: Iterable[Any], plan: PrefetchOptions) -> None:
        self._loader, self._plan = loader, plan
        self._own: Callable[[Any], Any] = _return_batch if snapshots.has_own_batches(loader) else snapshots.copy_batch
        self._host: list[Channel[Any]] = [Channel(plan.loader_prefetch_size) for _ in plan.devices]
        self._device: list[Channel[Any]] = [Channel(plan.device_prefetch_size) for _ in plan.devices]
        self._lock = threading.Lock()
        self._started = False
        self._first_read = threading.Event()
        self._process = os.getpid()
        self.threads: list[threading.Thread] = []

    def get(self, position: int) -> Any:
        """Return the next batch for ``plan.devices[position]``.

        Raises ChannelClosed at the end, the error of reading or sending, or RuntimeError in a forked child, which does
        not have the threads.
        """
        if os.getpid() != self._process:
            raise RuntimeError("this loader's threads run in the parent process; create a new loader after the fork")
        try:
            self.start()
            return self._device[position].get()[1]
        except BaseException:
            self.close_device(position)
            raise

    def start(self) -> None:
        """Start reading, once, and return when the first batch has been read.

        A loader draws the seed of its order at that time: while the caller waits, not concurrently with user code that
        may draw random numbers itself.
        """
        with self._lock:
            if self._started or self._device[0].closed:
                return
            self._started = True
            try:
                batches = start_iterator(self._loader)
            except BaseException:
                self.close()
                raise
            _feeds.add(self)
            self._spawn("reader", self._read, batches)
            for position, device in enumerate(self._plan.devices):
                for _ in range(self._plan.transfer_threads):
                    self._spawn(f"to {device}", self._send, position)
            self._first_read.wait()

    def _spawn(self, name: str, target: Any, argument: Any) -> None:
        line = user_frames.user_line_or_none()  # of the loop that consumes the batches

        def run() -> None:
            with user_frames.attribute_to_line(line):
                target(argument)

        thread = threading.Thread(target=run, name=f"torch_xla loader: {name}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _read(self, batches: Iterator[Any]) -> None:
        error = None
        try:
            for group in _groups(until_size_changes(self._announced(batches), self._plan), len(self._host)):
                # Not any(): a device must not starve because the consumer of another one has left.
                if True not in [channel.put(batch) for channel, batch in zip(self._host, group, strict=True)]:
                    break
        except BaseException as raised:
            error = raised
        finally:
            self._first_read.set()
        for channel in self._host:
            channel.end(error)
        del error  # avoid a reference cycle: its traceback refers to this frame

    def _announced(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            batch = self._own(batch)  # before the loader produces the next one
            self._first_read.set()
            yield batch

    def _send(self, position: int) -> None:
        host, device = self._host[position], self._device[position]
        while True:
            try:
                place, batch = host.get()
            except BaseException as error:
                return device.end(None if isinstance(error, ChannelClosed) else error, host.put_count)
            try:
                batch = (self._plan.place or to_device)(batch, self._plan.devices[position])
            except BaseException as error:
                return device.end(error, place)
            if not device.put(batch, place):
                return None

    def close_device(self, position: int) -> None:
        """Stop feeding a device; the other devices continue."""
        self._host[position].close()
        self._device[position].close()

    def close(self, patience: float = PATIENCE) -> None:
        """End the pass, also before the last batch: drop the batches, wait up to ``patience`` seconds for the threads.

        A thread that is reading a batch ends after it. In a forked child there are no threads to end.
        """
        if os.getpid() != self._process:
            return
        for channel in self._host + self._device:
            channel.close()
        deadline = time.monotonic() + patience
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _return_batch(batch: Any) -> Any:
    return batch


def start_iterator(loader: Iterable[Any]) -> Iterator[Any]:
    """Return iter(loader) without jax's fork warning for its worker processes."""
    with warnings.catch_warnings():
        # jax warns because a forked process may use jax; the workers of a DataLoader do not.
        warnings.filterwarnings("ignore", _FORK_WARNING, RuntimeWarning)
        return iter(loader)


def until_size_changes(batches: Iterator[Any], plan: PrefetchOptions) -> Iterator[Any]:
    """Yield the batches; with ``fixed_batch_size`` only those before the first one of another size."""
    if not plan.fixed_batch_size:
        return batches
    sizes: set[int] = set()

    def same(batch: Any) -> bool:
        sizes.update(t.shape[plan.batchdim] for t in itertools.islice(batch_structure.tensors(batch), 1))
        return len(sizes) <= 1

    return itertools.takewhile(same, batches)


def to_device(batch: Any, device: torch.device, send: Callable[..., torch.Tensor] = torch.Tensor.to) -> Any:
    """Return the batch with its tensors on the device."""
    return batch_structure.map_tensors(batch, lambda tensor: send(tensor, device))


def _groups(batches: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while len(group := list(itertools.islice(batches, size))) == size:
        yield group


_feeds: weakref.WeakSet[PrefetchFeed] = weakref.WeakSet()


def _close_all() -> None:
    for feed in list(_feeds):
        feed.close()


# Registered after torch_xla's exit function, so it runs before that, while the device still exists.
process_exit.register_at_exit(_close_all)
