"""Where the threads of one process that are replicas of each other come together.

    gathering (some have come) -> done (the last has come and has acted for all) -> gathering ...
    any -> broken (a thread has left for good); for good, and everyone who waits or comes later gets the reason
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Meeting:
    """A meeting point of ``count`` threads, used again and again. Owned by the one who starts the threads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._given: dict[int, Any] = {}
        self._round = 0
        self._results: Sequence[Any] = ()
        self._error: BaseException | None = None
        self._broken: str | None = None

    def together(self, position: int, given: Any, act: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Waits for all; the last calls ``act`` with what each gave, by position, and each gets its result.

        What ``act`` raises is raised for all. Raises RuntimeError where a thread has left that should have come.
        """
        with self._changed:
            self._check()
            mine = self._round
            self._given[position] = given
            if len(self._given) == self._count:
                self._act(act)
            else:
                self._changed.wait_for(lambda: self._round > mine or self._broken is not None)
                if self._round == mine:
                    self._check()
            if self._error is not None:
                raise RuntimeError(f"a step of replicas failed: {self._error}") from self._error
            return self._results[position]

    def _act(self, act: Callable[[list[Any]], Sequence[Any]]) -> None:
        # Nobody comes to the next round before it has taken its result of this one, so one place for them will do.
        given = [self._given[position] for position in range(self._count)]
        self._given = {}
        self._error, self._results = None, ()
        try:
            self._results = act(given)
        except BaseException as error:
            self._error = error
        self._round += 1
        self._changed.notify_all()

    def _check(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"a replica waits for others that do not come: {self._broken}")

    def leave(self, reason: str) -> None:
        """Says that a thread will not come again, and why."""
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()
