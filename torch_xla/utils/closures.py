"""What calls step closures (xm.add_step_closure): at once, or on a thread beside the program."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine.execution.background_threads import Runner

__all__ = ["AsyncClosureHandler", "ClosureHandler"]


class ClosureHandler(abc.ABC):
    """Something that calls closures."""

    @abc.abstractmethod
    def run(self, closure: Callable[[], Any]) -> None:
        """Calls one closure, now or later."""

    def run_all(self, closures: Sequence[Callable[[], Any]]) -> None:
        """Calls several, in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Calls closures in order on a thread of its own.

    An error of a closure is raised by the next ``run``. At the end of the process those that wait are called first; an
    error that was not raised goes to stderr then, and the exit code is 1.

    Args:
      max_queue_size: closures that may be pending; ``run`` waits for room beyond.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._runner = Runner("a closure of AsyncClosureHandler", max_queue_size)

    def start_event_loop(self) -> None:
        """Does nothing: the thread starts with a closure, and ends when none is left."""

    def run(self, closure: Callable[[], Any]) -> None:
        """Queues a closure. Raises the error of an earlier one."""
        self._runner.run(closure)

    def wait(self) -> None:
        """Returns when all have been called. Raises the error of one."""
        self._runner.wait()
