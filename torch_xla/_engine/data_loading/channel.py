"""A bounded queue between threads. Either end can say that it is over, and neither is left waiting then."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosed(Exception):
    """Nothing comes any more."""


class Channel(Generic[T]):
    """Items in order, at most ``size`` at a time. Producers may work in parallel: each item has a place in the order.

        open  --end(place, error)-->  ending   items before `place` can still be taken, then get() raises
        open, ending  --close()-->    closed   what is inside is dropped, put() drops, get() raises End

    An end can only move forwards in the order (the earliest wins), and a closed channel stays closed.
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
        """Adds an item when there is room and its turn has come. False: nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._has_room() and place in (None, self._arrived)))
            if self._closed:
                return False
            self._items.append(item)
            self._arrived += 1
            self._changed.notify_all()
            return True

    def get(self) -> tuple[int, T]:
        """The next item and its place. Raises what ended the channel, or End."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items or self._is_over())
            if not self._items:
                raise self._error.with_traceback(self._traceback) if self._error else ChannelClosed
            self._changed.notify_all()
            self._taken += 1
            return self._taken - 1, self._items.popleft()

    def end(self, error: BaseException | None = None, place: int | None = None) -> None:
        """Ends the channel at ``place`` (default: after what was put so far); get() raises ``error`` there, or End."""
        with self._changed:
            place = self._arrived if place is None else place
            if self._end is None or place < self._end:
                self._end, self._error = place, error
                self._traceback = error.__traceback__ if error else None
            self._changed.notify_all()

    def close(self) -> None:
        """Drops everything, now and later; nobody waits any more."""
        with self._changed:
            self._closed = True
            self._error = self._traceback = None
            self._items.clear()
            self._changed.notify_all()

    @property
    def put_count(self) -> int:
        """How many items have been put: the place of the next one."""
        return self._arrived

    @property
    def closed(self) -> bool:
        return self._closed

    def _has_room(self) -> bool:
        return len(self._items) < self._size and not self._is_over()

    def _is_over(self) -> bool:
        return self._end is not None and self._arrived >= self._end
