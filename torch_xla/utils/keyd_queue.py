"""Queues of bounded size that end: by their key, or in order."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable
from typing import Any


class QueueBase:
    """What both queues can do: they hold at most ``maxsize`` items, and whoever puts one more waits.

    open -> ending (by close_write: nothing is put any more, what is there can be got) -> closed (by close: ``get``
    gives None to all). Any thread may call anything. Raises ValueError for a size below 1.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        if maxsize < 1:
            raise ValueError(f"{type(self).__name__}: maxsize={maxsize} must be 1 or more")
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._ending = self._closed = False

    def max_size(self) -> int:
        """How many items it holds at most."""
        return self._maxsize

    def close(self) -> None:
        """Ends it: who waits in ``get`` gets None, who waits in ``put`` RuntimeError."""
        with self._changed:
            self._ending = self._closed = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Nothing more is put; what is there can still be got."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _size(self) -> int:
        raise NotImplementedError

    def _wait_for_room(self) -> None:
        self._changed.wait_for(lambda: self._ending or self._size() < self._maxsize)
        if self._ending:
            raise RuntimeError(f"{type(self).__name__}: it has been closed, and nothing can be put any more")


class KeydQueue(QueueBase):
    """Items by key: ``get(key)`` waits for the item that ``put(key, item)`` brings."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Hashable, Any] = {}

    def _size(self) -> int:
        return len(self._items)

    def put(self, key: Hashable, item: Any) -> None:
        """Adds an item; waits for room. RuntimeError where it was closed, KeyError for a key that is there."""
        with self._changed:
            self._wait_for_room()
            if key in self._items:
                raise KeyError(f"KeydQueue: nobody has got the item of key {key!r} yet")
            self._items[key] = item
            self._changed.notify_all()

    def get(self, key: Hashable) -> Any:
        """Takes the item of that key out; waits for it. None where the queue ends without it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or key in self._items)
            item = None if self._closed else self._items.pop(key, None)
            self._changed.notify_all()
            return item


class Queue(QueueBase):
    """Items in the order in which they were put."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: collections.deque[Any] = collections.deque()

    def _size(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Adds an item at the end; waits for room. RuntimeError where it was closed."""
        with self._changed:
            self._wait_for_room()
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Any:
        """Takes the first item out; waits for one. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._items)
            item = None if self._closed or not self._items else self._items.popleft()
            self._changed.notify_all()
            return item
