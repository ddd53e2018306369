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


class _Key:
    """A key with the hash that it had when it was made.

    The hash of a user's object may change later; the item is then still found by its key, and can be removed.
    """

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self._hash = hash(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.value == other.value

    def __hash__(self) -> int:
        return self._hash


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
        self._items: dict[_Key, T] = {}  # the oldest first; an OrderedDict breaks where keys become equal later
        self._weights: dict[_Key, int] = {}  # of the items that have one
        self._bytes = 0
        self._lock = process_lock()

    def get(self, key: Hashable) -> T | None:
        """The item, which is then the most recently used; None if it is not there."""
        fixed = _Key(key)
        with self._lock:
            found = self._items.pop(fixed, None)
            if found is not None:
                self._items[fixed] = found
            return found

    def put(self, key: Hashable, value: T, held: int = 0) -> None:
        """Adds an item, and evicts the oldest where there are too many; ``held``: bytes on top of what it weighs."""
        evicted = []  # dies after the lock is let go: an item may own anything
        weight = self._weigh(value) + held
        fixed = _Key(key)
        with self._lock:
            replaced = self._take(fixed)
            self._items[fixed] = value
            if weight:
                self._weights[fixed] = weight
                self._bytes += weight
            while len(self._items) > self._limit() or (self._bytes > ROOM and len(self._items) > 1):
                oldest = next(iter(self._items))
                evicted.append((oldest, self._take(oldest)))
        del replaced
        for _ in evicted:
            self._on_evict()

    def _take(self, key: _Key) -> T | None:
        self._bytes -= self._weights.pop(key, 0)
        return self._items.pop(key, None)

    def remove(self, is_unwanted: Callable[[Hashable], bool]) -> None:
        """Remove the items whose keys are unwanted, without ``on_evict``."""
        with self._lock:
            removed = [(key, self._take(key)) for key in list(self._items) if is_unwanted(key.value)]
        del removed  # an item may own anything

    @property
    def bytes(self) -> int:
        """The bytes of the arrays that all items hold."""
        return self._bytes

    def values(self) -> list[T]:
        """The items, oldest first."""
        with self._lock:
            return list(self._items.values())

    def clear(self) -> None:
        """Forgets all, without ``on_evict``."""
        self.remove(lambda key: True)

    def __len__(self) -> int:
        return len(self._items)
