"""Batches that are read when they are asked for, on the thread that asks: for loaders that change while they are read.

What a loader says of itself (``end_of_dataloader`` of accelerate's, ``state_dict()`` of a StatefulDataLoader, the
position of a generator) is then true of the batch that was given out last. The devices compute meanwhile: whoever asks
has started the step before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torch_xla._engine.data_loading import prefetch
from torch_xla._engine.data_loading.channel import ChannelClosed


class OnDemandFeed:
    """One pass over a loader for one device, with the methods of prefetch.Feed and no thread.

    new  --get()-->  reading  --the last batch, an error, close()-->  over
    """

    def __init__(self, loader: Iterable[Any], plan: prefetch.PrefetchOptions) -> None:
        (self._device,) = plan.devices
        self._plan = plan
        self._loader: Iterable[Any] | None = loader
        self._batches: Iterator[Any] | None = None
        self._lock = threading.Lock()

    def get(self, position: int) -> Any:
        """The next batch, on the device. Raises End, or what reading or sending raised, and End from then on."""
        with self._lock:
            try:
                if self._batches is None:
                    if self._loader is None:
                        raise ChannelClosed
                    loader, self._loader = self._loader, None
                    self._batches = prefetch.until_size_changes(prefetch.start_iterator(loader), self._plan)
                batch = next(self._batches, ChannelClosed)
                if batch is ChannelClosed:
                    raise ChannelClosed
                return (self._plan.place or prefetch.to_device)(batch, self._device)
            except BaseException:
                self.close_device(position)
                raise

    def close_device(self, position: int) -> None:
        """Drops the loader: the pass is over."""
        self._loader = self._batches = None

    def close(self, patience: float = prefetch.PATIENCE) -> None:
        """Ends the pass, also in the middle. There is nothing to wait for."""
        self.close_device(0)
