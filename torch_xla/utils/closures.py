"""Handlers that run step closures (xm.add_step_closure), synchronously or on a separate thread."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine.execution.background_threads import Runner

__all__ = ["AsyncClosureHandler", "ClosureHandler"]


class ClosureHandler(abc.ABC):
    """Base class of handlers that run closures."""

    @abc.abstractmethod
    def run(self, closure: Callable[[], Any]) -> None:
        """Run a closure, now or later.

        Args:
          closure: a function without arguments.
        """

    def run_all(self, closures: Sequence[Callable[[], Any]]) -> None:
        """Run several closures, in order.

        Args:
          closures: functions without arguments.
        """
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Run closures in order on a separate thread.

    The next ``run`` raises an error of a closure. Pending closures run before the process exits; an error that was not
    raised by then is printed to stderr, and the exit code is 1.

    Args:
      max_queue_size: maximum number of pending closures; ``run`` blocks while the queue is full.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._runner = Runner("a closure of AsyncClosureHandler", max_queue_size)

    def start_event_loop(self) -> None:
        """Do nothing: the thread starts with the first closure and ends when the queue is empty."""

    def run(self, closure: Callable[[], Any]) -> None:
        """Queue a closure. Raises the error of an earlier one.

        Args:
          closure: a function without arguments.
        """
        self._runner.run(closure)

    def wait(self) -> None:
        """Wait until all closures have run. Raises the error of one."""
        self._runner.wait()
