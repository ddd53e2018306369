"""Tables that keep what was used most recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch_xla._engine.base.locks import process_lock
from torch_xla._engine.base.settings import settings

T = TypeVar("T")


def _program_limit() -> int:
    return settings.XLA_COMPILATION_CACHE_SIZE


class LruCache(Generic[T]):
    """A table by key of a bounded number of items; the least recently used goes first. Thread-safe.

    Owned by its module for the life of the process.

    Args:
      limit: gives the most items that are kept, asked at each ``put``; XLA_COMPILATION_CACHE_SIZE by default.
      on_evict: called once for each item that had to go.
    """

    def __init__(self, on_evict: Callable[[], None] = lambda: None, limit: Callable[[], int] = _program_limit) -> None:
        self._on_evict, self._limit = on_evict, limit
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = process_lock()

    def get(self, key: Hashable) -> T | None:
        """The item, which is then the most recently used; None if it is not there."""
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
            return found

    def put(self, key: Hashable, value: T) -> None:
        """Adds an item, and evicts the oldest where there are too many."""
        evicted = []  # dies after the lock is let go: an item may own anything
        with self._lock:
            self._items[key] = value
            while len(self._items) > self._limit():
                evicted.append(self._items.popitem(last=False))
        for _ in evicted:
            self._on_evict()

    def values(self) -> list[T]:
        """The items, oldest first."""
        with self._lock:
            return list(self._items.values())

    def clear(self) -> None:
        """Forgets all, without ``on_evict``."""
        with self._lock:
            self._items.clear()

    def __len__(self) -> int:
        return len(self._items)
