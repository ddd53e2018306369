"""Work that goes on beside the program, and what becomes of it when the process ends or forks."""

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
    """Calls tasks one after the other on a thread beside the program.

        queued --thread--> running --> done
                                  `--> failed --run, wait or raise_failure--> raised
                                             `--end of the process---------> reported on stderr, exit code 1

    Owns the tasks until they are done. The thread lives while there are tasks and is no daemon, so the process ends
    after the last one. Tasks of the parent are not those of a forked child, which begins with none. An interrupt
    leaves a task either queued or not; it loses no room.

    Args:
      name: what its tasks are, for messages.
      max_pending: tasks that are queued or running; ``run`` waits for room beyond. 0: any number.
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
        """Queues a task. Raises the failure of an earlier one, in which case it is queued all the same."""
        self.wait_for_room()
        with self._changed:
            self._tasks.append(task)
            self._start()
        self.raise_failure()

    def wait_for_room(self) -> None:
        """Returns when ``run`` need not wait."""
        with self._changed:
            self._start()
            while self._max_pending and self._count_pending() >= self._max_pending:
                self._changed.wait()

    def wait(self) -> None:
        """Returns when all tasks are done. Raises the failure of one."""
        self.wait_until_done()
        self.raise_failure()

    def wait_until_done(self) -> None:
        """Returns when all tasks are done."""
        with self._changed:
            self._start()
            while self._count_pending():
                self._changed.wait()

    def raise_failure(self) -> None:
        """Raises the failure of the earliest task that failed and was not raised yet."""
        if self._failures:
            raise self._failures.popleft()

    def take_failures(self) -> list[BaseException]:
        """Return the failures that were not raised yet; the caller reports them."""
        _failed.discard(self)
        return [self._failures.popleft() for _ in range(len(self._failures))]

    @property
    def name(self) -> str:
        """What its tasks are."""
        return self._name

    def _count_pending(self) -> int:
        return len(self._tasks) + self._is_running

    def _start(self) -> None:
        """Starts the thread if there is work for it. Called with the lock."""
        if self._tasks and (self._thread is None or not self._thread.is_alive()):
            # Noted first: an interrupt after that leaves a thread that is not alive, and another one is started.
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
                del task  # it may own anything, and the next one may never come
                with self._changed:
                    self._is_running = False
                    self._changed.notify_all()

    def _next(self) -> Task | None:
        with self._changed:
            if self._thread is not threading.current_thread():
                return None  # another one has taken over
            if not self._tasks:
                self._thread = None
                return None
            self._is_running = True
            return self._tasks.popleft()

    def begin_in_child(self) -> None:
        """Reset in a forked child: no task, and a lock that is free."""
        self._inherited = self._tasks, self._failures  # freed later: xla tensors among them are lost by then
        self._begin()


_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_failed: set[Runner] = set()  # alive until their failures are raised or reported


def finish() -> str:
    """Wait for all background tasks. Return the report of failures that were not raised; empty without."""
    for runner in list(_runners):
        runner.wait_until_done()
    report = ""
    for runner in list(_failed):
        for failure in runner.take_failures():
            trace = "".join(traceback.format_exception(failure))
            report += f"torch_xla: {runner.name} failed, and the process ended before the failure was raised:\n{trace}"
    return report


def report_failures() -> None:
    """Wait, and report failures that were not raised on stderr and in the exit code; for atexit."""
    if report := finish():
        if sys.stderr is not None:
            sys.stderr.write(report)
        process_exit.set_exit_code(1)


def _begin_in_child() -> None:
    _failed.clear()
    for runner in list(_runners):
        runner.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
