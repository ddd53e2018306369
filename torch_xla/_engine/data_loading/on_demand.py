"""Read batches on demand, on the consumer's thread, for loaders whose state is read during iteration.

The loader's state (``end_of_dataloader`` of accelerate, ``state_dict()`` of a StatefulDataLoader, the position of a
generator) then corresponds to the batch that was returned last. The devices compute meanwhile: the caller has already
started the previous step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torch_xla._engine.data_loading import prefetch
from torch_xla._engine.data_loading.channel import ChannelClosed


class OnDemandFeed:
    """One pass over a loader for one device, with the interface of prefetch.PrefetchFeed and without threads.

    new  --get()-->  reading  --the last batch, an error, close()-->  over
    """

    def __init__(self, loader: Iterable[Any], plan: prefetch.PrefetchOptions) -> None:
        (self._device,) = plan.devices
        self._plan = plan
        self._loader: Iterable[Any] | None = loader
        self._batches: Iterator[Any] | None = None
        self._lock = threading.Lock()

    def get(self, position: int) -> Any:
        """Return the next batch on the device. Raises the error of reading or sending once; then ChannelClosed."""
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
        """End the pass and release the loader."""
        self._loader = self._batches = None

    def close(self, patience: float = prefetch.PATIENCE) -> None:
        """End the pass, also before the last batch. Does not wait."""
        self.close_device(0)
