"""Tables that remember what was used most recently."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from torch_xla._engine import metrics
from torch_xla._engine.settings import settings

T = TypeVar("T")


class Recent(Generic[T]):
    """A table by key, least recently used first, of at most XLA_COMPILATION_CACHE_SIZE items. Thread-safe.

    Owned by its module for the life of the process. ``forgotten`` is the counter of the items that had to go.
    """

    def __init__(self, forgotten: str) -> None:
        self._forgotten = forgotten
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """The item, which is then the most recently used; None if it is not there."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
            return found

    def put(self, key: Hashable, value: T) -> None:
        """Adds an item, and forgets the oldest where there are too many."""
        with self._lock:
            self._items[key] = value
            while len(self._items) > settings.XLA_COMPILATION_CACHE_SIZE:
                self._items.popitem(last=False)
                metrics.count(self._forgotten)

    def values(self) -> list[T]:
        """The items, oldest first."""
        with self._lock:
            return list(self._items.values())

    def clear(self) -> None:
        """Forgets all, uncounted."""
        with self._lock:
            self._items.clear()

    def __len__(self) -> int:
        return len(self._items)
