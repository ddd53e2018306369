"""A bounded, ordered queue between threads that either end can close without leaving the other one waiting."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosed(Exception):
    """The channel has no more items."""


class Channel(Generic[T]):
    """A queue of at most ``size`` items. Producers may work in parallel: each item has a position in the order.

        open  --end(position, error)-->  ending   items before `position` can still be taken, then get() raises
        open, ending  --close()-->       closed   items are dropped, put() drops, get() raises ChannelClosed

    The end can only move to an earlier position (the earliest wins), and a closed channel stays closed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._arrived = 0  # items ever put: the place of the next one
        self._taken = 0
        self._end: int | None = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closed = False

    def put(self, item: T, place: int | None = None) -> bool:
        """Add an item when there is space and its turn has come. Returns False if the channel is closed or ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._has_room() and place in (None, self._arrived)))
            if self._closed:
                return False
            self._items.append(item)
            self._arrived += 1
            self._changed.notify_all()
            return True

    def get(self) -> tuple[int, T]:
        """Return the next item and its position. Raises the error that ended the channel, or ChannelClosed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items or self._is_over())
            if not self._items:
                raise self._error.with_traceback(self._traceback) if self._error else ChannelClosed
            self._changed.notify_all()
            self._taken += 1
            return self._taken - 1, self._items.popleft()

    def end(self, error: BaseException | None = None, place: int | None = None) -> None:
        """End the channel at a position (default: the next one), where get() raises ``error`` or ChannelClosed."""
        with self._changed:
            place = self._arrived if place is None else place
            if self._end is None or place < self._end:
                self._end, self._error = place, error
                self._traceback = error.__traceback__ if error else None
            self._changed.notify_all()

    def close(self) -> None:
        """Drop all items, now and later, and wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._error = self._traceback = None
            self._items.clear()
            self._changed.notify_all()

    @property
    def put_count(self) -> int:
        """Return the number of items put so far, which is the position of the next one."""
        return self._arrived

    @property
    def closed(self) -> bool:
        return self._closed

    def _has_room(self) -> bool:
        return len(self._items) < self._size and not self._is_over()

    def _is_over(self) -> bool:
        return self._end is not None and self._arrived >= self._end
