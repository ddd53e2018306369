"""Tables that keep what was used most recently."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch_xla._engine.base.locks import process_lock
from torch_xla._engine.base.settings import settings

T = TypeVar("T")


#: How many bytes of arrays the items of one table may hold.
ROOM = 512 << 20


def _program_limit() -> int:
    return settings.XLA_COMPILATION_CACHE_SIZE


def _weighs_nothing(item: object) -> int:
    return 0


class LruCache(Generic[T]):
    """A table by key of a bounded number of items and bytes; the least recently used goes first. Thread-safe.

    Owned by its module for the life of the process. The item that was put last is kept, whatever it weighs.

    Args:
      limit: gives the most items that are kept, asked at each ``put``; XLA_COMPILATION_CACHE_SIZE by default.
      on_evict: called once for each item that had to go.
      weigh: gives the bytes of the arrays that an item holds, asked once; the sum of all is at most ROOM.
    """

    def __init__(
        self,
        on_evict: Callable[[], None] = lambda: None,
        limit: Callable[[], int] = _program_limit,
        weigh: Callable[[T], int] = _weighs_nothing,
    ) -> None:
        self._on_evict, self._limit, self._weigh = on_evict, limit, weigh
        # Items and their weights, the oldest first. No OrderedDict: it looks its keys up to keep their order, and links
        # them in a circle where two became equal after they were put.
        self._items: dict[Hashable, tuple[T, int]] = {}
        self._bytes = 0
        self._lock = process_lock()

    def get(self, key: Hashable) -> T | None:
        """The item, which is then the most recently used; None if it is not there."""
        with self._lock:
            found = self._items.pop(key, None)
            if found is None:
                return None
            self._items[key] = found
            return found[0]

    def put(self, key: Hashable, value: T, held: int = 0) -> None:
        """Adds an item, and evicts the oldest where there are too many; ``held``: bytes on top of what it weighs."""
        evicted = []  # dies after the lock is let go: an item may own anything
        weight = self._weigh(value) + held
        with self._lock:
            replaced = self._items.pop(key, None)
            self._bytes += weight - (replaced[1] if replaced else 0)
            self._items[key] = value, weight
            while len(self._items) > self._limit() or (self._bytes > ROOM and len(self._items) > 1):
                evicted.append(self._take_oldest())
        del replaced
        for _ in evicted:
            self._on_evict()

    def _take_oldest(self) -> tuple[Hashable, T]:
        key, item = next(iter(self._items.items()))
        found = self._items.pop(key, None)
        if found is None:  # the hash of a user's object in the key has changed
            self._replace(list(self._items.items())[1:])
            return key, item[0]
        self._bytes -= found[1]
        return key, found[0]

    def _replace(self, items: list[tuple[Hashable, tuple[T, int]]]) -> None:
        self._items = dict(items)
        self._bytes = sum(weight for _, weight in self._items.values())

    def remove(self, is_unwanted: Callable[[Hashable], bool]) -> None:
        """Remove the items whose keys are unwanted, without ``on_evict``."""
        with self._lock:
            before = self._items  # an item may own anything: it dies after the lock is released
            self._replace([(key, item) for key, item in before.items() if not is_unwanted(key)])
        del before

    @property
    def bytes(self) -> int:
        """The bytes of the arrays that all items hold."""
        return self._bytes

    def values(self) -> list[T]:
        """The items, oldest first."""
        with self._lock:
            return [item for item, _ in self._items.values()]

    def clear(self) -> None:
        """Forgets all, without ``on_evict``."""
        self.remove(lambda key: True)

    def __len__(self) -> int:
        return len(self._items)
