"""What the user wants to be done once the step's values are there: closures that the next barrier calls.

    queued (by a thread, for its current device) ──barrier──► called, in order, on that thread
                                                          └──► or by one thread beside the program, in order (Runner)

Queues belong to the thread that fills them; a barrier of another thread leaves them alone.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from queue import Queue
from typing import Any

from torch_xla._engine.base.compat import tracing

Closure = Callable[[], Any]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.queued: dict[int, list[tuple[Closure, bool]]] = {}


_here = _Thread()


class Runner:
    """Calls closures one after the other on a thread of its own, which is started with the first.

    An error of a closure is raised by the next ``run`` or ``wait``; closures after it are called all the same. At the
    end of the process what is queued is called first.

    Args:
      max_queue_size: closures that wait; ``run`` waits for room beyond.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        self._queue: Queue[Closure] = Queue(max_queue_size)
        self._errors: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._loop, name="torch_xla step closures", daemon=True)
            self._thread.start()
            atexit.register(self._queue.join)

    def _loop(self) -> None:
        while True:
            closure = self._queue.get()
            try:
                closure()
            except BaseException as error:
                self._errors.append(error)
            finally:
                del closure  # it may own anything, and the next one may never come
                self._queue.task_done()

    def run(self, closure: Closure) -> None:
        """Queues a closure. Raises the error of an earlier one."""
        self.start()
        self._queue.put(closure)
        self._raise()

    def wait(self) -> None:
        """Returns when all have been called. Raises the error of one."""
        self._queue.join()
        self._raise()

    def _raise(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


_beside = Runner()


def add(device: int, closure: Callable[..., Any], args: Sequence[Any], beside: bool) -> None:
    """Queues ``closure(*args)`` for the next barrier of this thread on the device."""
    if beside:
        # The program goes on while it waits, and may write to its arguments.
        args = tracing.map_tensors(lambda t: t.detach().clone() if t.device.type == "xla" else t, list(args))
    _here.queued.setdefault(device, []).append((lambda: closure(*args), beside))


def call(device: int) -> None:
    """Calls what is queued for the device. All are called; then the first error is raised."""
    queued = _here.queued.pop(device, None)
    if queued is None:
        return
    errors = []
    for closure, beside in queued:
        try:
            _beside.run(closure) if beside else closure()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
