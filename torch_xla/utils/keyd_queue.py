"""Bounded, closable queues: by key, and first in first out."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable
from typing import Any


class QueueBase:
    """Base of both queues: they hold at most ``maxsize`` items, and ``put`` blocks while the queue is full.

    open -> ending (close_write: no more ``put``, remaining items can be read) -> closed (close: ``get`` returns None).
    All methods are thread-safe. Raises ValueError for a size below 1.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        if maxsize < 1:
            raise ValueError(f"{type(self).__name__}: maxsize={maxsize} must be 1 or more")
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._ending = self._closed = False

    def max_size(self) -> int:
        """Return the maximum number of items."""
        return self._maxsize

    def close(self) -> None:
        """Close the queue: a waiting ``get`` returns None, a waiting ``put`` raises RuntimeError."""
        with self._changed:
            self._ending = self._closed = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Reject further ``put`` calls; the remaining items can still be read."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _size(self) -> int:
        raise NotImplementedError

    def _wait_for_room(self) -> None:
        self._changed.wait_for(lambda: self._ending or self._size() < self._maxsize)
        if self._ending:
            raise RuntimeError(f"{type(self).__name__}.put: the queue is closed")


class KeydQueue(QueueBase):
    """A queue by key: ``get(key)`` waits for the item of ``put(key, item)``.

    Args:
      maxsize: maximum number of items.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Hashable, Any] = {}

    def _size(self) -> int:
        return len(self._items)

    def put(self, key: Hashable, item: Any) -> None:
        """Add an item; wait while the queue is full.

        Args:
          key: a hashable key.
          item: the item.

        Raises:
          RuntimeError: the queue is closed.
          KeyError: the key is in use.
        """
        with self._changed:
            self._wait_for_room()
            if key in self._items:
                raise KeyError(f"KeydQueue: key {key!r} already has an item")
            self._items[key] = item
            self._changed.notify_all()

    def get(self, key: Hashable) -> Any:
        """Remove and return the item of a key; wait for it. Returns None if the queue ends without it.

        Args:
          key: the key.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ending or key in self._items)
            item = None if self._closed else self._items.pop(key, None)
            self._changed.notify_all()
            return item


class Queue(QueueBase):
    """A first-in, first-out queue.

    Args:
      maxsize: maximum number of items.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: collections.deque[Any] = collections.deque()

    def _size(self) -> int:
        return len(self._items)

    def put(self, item: Any) -> None:
        """Append an item; wait while the queue is full.

        Args:
          item: the item.

        Raises:
          RuntimeError: the queue is closed.
        """
        with self._changed:
            self._wait_for_room()
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Any:
        """Remove and return the first item; wait for one. Returns None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._items)
            item = None if self._closed or not self._items else self._items.popleft()
            self._changed.notify_all()
            return item
