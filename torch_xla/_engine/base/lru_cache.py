"""Thread-safe LRU caches, bounded by the number of items and their bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings

T = TypeVar("T")


#: Maximum bytes of arrays that the items of one cache may hold.
ROOM = 512 << 20


def _program_limit() -> int:
    return settings.XLA_COMPILATION_CACHE_SIZE


def _weighs_nothing(item: object) -> int:
    return 0


class _Item(Generic[T]):
    __slots__ = ("used", "value", "weight")

    def __init__(self, value: T, weight: int, used: int) -> None:
        self.value, self.weight, self.used = value, weight, used


class LruCache(Generic[T]):
    """A thread-safe mapping with a bounded number of items and bytes; evicts the least recently used item.

    Owned by its module for the life of the process. The most recently added item stays, regardless of its size.

    Args:
      limit: Returns the maximum number of items, called at each ``put``; XLA_COMPILATION_CACHE_SIZE by default.
      on_evict: Called once for each evicted item.
      weigh: Returns the bytes of the arrays that an item holds, called once per item; the sum is at most ROOM.
    """

    def __init__(
        self,
        on_evict: Callable[[], None] = lambda: None,
        limit: Callable[[], int] = _program_limit,
        weigh: Callable[[T], int] = _weighs_nothing,
    ) -> None:
        self._on_evict, self._limit, self._weigh = on_evict, limit, weigh
        # Not ordered by use: an interrupt while an item moves would lose it, and an OrderedDict looks up its keys,
        # whose hashes and equality may have changed.
        self._items: dict[Hashable, _Item[T]] = {}
        self._clock = itertools.count()
        self._lock = fork_safe_lock()

    def get(self, key: Hashable) -> T | None:
        """Return the item and mark it as most recently used; None if it is missing."""
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            found.used = next(self._clock)
            return found.value

    def put(self, key: Hashable, value: T, held: int = 0) -> None:
        """Add an item and evict the oldest if there are too many; ``held``: bytes in addition to its weight."""
        item = _Item(value, self._weigh(value) + held, next(self._clock))
        with self._lock:
            replaced = self._items.get(key)  # freed after the lock is released, as evicted items: it may own anything
            self._items[key] = item
            evicted = self._find_evicted()
            if evicted:
                gone = {id(item) for item in evicted}
                self._items = {key: item for key, item in self._items.items() if id(item) not in gone}
        del replaced
        for _ in evicted:
            self._on_evict()

    def _find_evicted(self) -> list[_Item[T]]:
        count, total, evicted = len(self._items), self._total(), list[_Item[T]]()
        if count <= self._limit() and total <= ROOM:
            return evicted
        for item in self._oldest_first():
            if count <= self._limit() and (total <= ROOM or count == 1):
                break
            evicted.append(item)
            count, total = count - 1, total - item.weight
        return evicted

    def _oldest_first(self) -> list[_Item[T]]:
        return sorted(self._items.values(), key=lambda item: item.used)

    def remove(self, is_unwanted: Callable[[Hashable], bool]) -> None:
        """Remove the items whose keys are unwanted, without calling ``on_evict``."""
        with self._lock:
            before = self._items  # freed after the lock is released: an item may own anything
            self._items = {key: item for key, item in before.items() if not is_unwanted(key)}
        del before

    @property
    def bytes(self) -> int:
        """Bytes of the arrays that all items hold."""
        with self._lock:
            return self._total()

    def _total(self) -> int:
        return sum(item.weight for item in self._items.values())

    def values(self) -> list[T]:
        """Return the items, oldest first."""
        with self._lock:
            return [item.value for item in self._oldest_first()]

    def clear(self) -> None:
        """Remove all items without calling ``on_evict``."""
        self.remove(lambda key: True)

    def __len__(self) -> int:
        return len(self._items)
