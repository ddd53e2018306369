"""Background task runners, and what happens to their tasks when the process exits or forks."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch_xla._engine.compat import process_exit

Task = Callable[[], Any]


class Runner:
    """Runs tasks one after the other on a background thread.

        queued --thread--> running --> done
                                  `--> failed --run, wait or raise_failure--> raised
                                             `--end of the process---------> reported on stderr, exit code 1

    Owns the tasks until they are done. The thread exists while there are tasks and is not a daemon, so the process
    exits after the last task. A forked child starts with no tasks. An interrupt leaves a task either queued or not
    queued; it loses no capacity.

    Args:
      name: describes the tasks in messages.
      max_pending: maximum number of queued and running tasks; ``run`` blocks while it is reached. 0: no limit.
    """

    def __init__(self, name: str, max_pending: int = 0) -> None:
        self._name, self._max_pending = name, max_pending
        self._begin()
        _runners.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._is_running = False
        self._thread: threading.Thread | None = None
        self._failures: deque[BaseException] = deque()

    def run(self, task: Task) -> None:
        """Queue a task. If an earlier task failed, raises its failure after queueing."""
        self.wait_for_room()
        with self._changed:
            self._tasks.append(task)
            self._start()
        self.raise_failure()

    def wait_for_room(self) -> None:
        """Block until ``run`` can queue a task without waiting."""
        with self._changed:
            self._start()
            while self._max_pending and self._count_pending() >= self._max_pending:
                self._changed.wait()

    def wait(self) -> None:
        """Block until all tasks are done. Raises the failure of one."""
        self.wait_until_done()
        self.raise_failure()

    def wait_until_done(self, timeout: float | None = None) -> bool:
        """Block until all tasks are done, or for ``timeout`` seconds. Return whether they are done."""
        with self._changed:
            self._start()
            return self._changed.wait_for(lambda: not self._count_pending(), timeout)

    def is_current_thread(self) -> bool:
        """Whether the caller is one of the tasks."""
        return self._thread is threading.current_thread()

    def raise_failure(self) -> None:
        """Raise the earliest failure that was not raised yet."""
        if self._failures:
            raise self._failures.popleft()

    def take_failures(self) -> list[BaseException]:
        """Return the failures that were not raised yet; the caller reports them."""
        _failed.discard(self)
        return [self._failures.popleft() for _ in range(len(self._failures))]

    @property
    def name(self) -> str:
        """The description of the tasks."""
        return self._name

    def _count_pending(self) -> int:
        return len(self._tasks) + self._is_running

    def _start(self) -> None:
        """Start the thread if there are tasks. The caller holds the lock."""
        if self._tasks and (self._thread is None or not self._thread.is_alive()):
            # Assigned before start(): after an interrupt in between, the thread is not alive and is started again.
            self._thread = threading.Thread(target=self._work, name=f"torch_xla: {self._name}", daemon=False)
            self._thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException as failure:
                self._failures.append(failure)
                _failed.add(self)
            finally:
                del task  # it may own large objects, and there may be no next task
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            if self._thread is not threading.current_thread():
                return None  # another thread has taken over
            if not self._tasks:
                self._thread = None
                return None
            self._is_running = True
            return self._tasks.popleft()

    def begin_in_child(self) -> None:
        """Reset in a forked child: no tasks, and an unlocked lock."""
        self._inherited = self._tasks, self._failures  # freed later, after their xla tensors were invalidated
        self._begin()


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_failed: set[Runner] = set()  # alive until their failures are raised or reported


def finish() -> str:
    """Wait for all background tasks. Return a report of failures that were not raised; empty if there are none."""
    for runner in list(_runners):
        runner.wait_until_done()
    report = ""
    for runner in list(_failed):
        for failure in runner.take_failures():
            trace = "".join(traceback.format_exception(failure))
            report += f"torch_xla: {runner.name} failed, and the process ended before the failure was raised:\n{trace}"
    return report


def report_failures() -> None:
    """Wait for all tasks; report failures that were not raised on stderr and in the exit code. For atexit."""
    if report := finish():
        if sys.stderr is not None:
            sys.stderr.write(report)
        process_exit.set_exit_code(1)


def _begin_in_child() -> None:
    _failed.clear()
    for runner in list(_runners):
        runner.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
