"""Measure the execution time of launched programs (ExecuteTime) without blocking the thread that launches them.

One thread per device waits for the programs in launch order. The time of a program starts at its launch, or at the end
of the previous program if that is later: a device runs one program at a time. While a program runs, its sample is the
time so far, so reading a metric never waits.

    launched (track_completion) -> running (OpenSample.since) -> ended (Metric.end)
                                                             `-> failed (reported at exit unless the error was raised)
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from queue import SimpleQueue
from typing import Any

import jax

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compat import process_exit
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.diagnostics.metrics import Metric, OpenSample
from torch_xla._engine.diagnostics.profiler_spans import DeviceEvent

#: Seconds that process exit waits for a program. A thread that is still inside XLA after the interpreter is finalized
#: crashes the process.
_EXIT_TIMEOUT = 5.0

_Program = tuple[Metric, OpenSample, int, Any, DeviceEvent | None]


class Marker:
    """A position in the programs of a device: it has ended when the programs launched before it have.

    ``time`` is that time, in ns of perf_counter; 0 before.
    """

    def __init__(self) -> None:
        self.time = 0
        self._ended = threading.Event()

    def end(self, now: int) -> None:
        """Set the time, once."""
        self.time = now
        self._ended.set()

    def is_ended(self) -> bool:
        """Whether the device has reached the position."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Wait until the device has reached the position."""
        self._ended.wait()


class _CompletionThread:
    def __init__(self, device: int) -> None:
        self.launched: SimpleQueue[_Program | Marker | None] = SimpleQueue()
        self._last_end = 0
        self.failures: deque[str] = deque(maxlen=8)  # error texts of programs that failed after their launch
        self._thread = threading.Thread(target=self._run, name=f"torch_xla: ends of xla:{device}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (program := self.launched.get()) is not None:
            if isinstance(program, Marker):
                program.end(time.perf_counter_ns())
            else:
                self._wait_for_end(*program)
            del program  # release the result

    def _wait_for_end(
        self, metric: Metric, sample: OpenSample, start: int, awaited: Any, run: DeviceEvent | None
    ) -> None:
        sample.since = max(start, self._last_end)
        try:
            awaited.block_until_ready()
        except Exception as error:
            # Reading a failed result raises the error. A result that was donated meanwhile did not fail.
            if isinstance(error, jax.errors.JaxRuntimeError) and "deleted or donated" not in str(error):
                self.failures.append(str(error))
        now = time.perf_counter_ns()
        # With a profiler, the thread that reads the result may observe the end before this thread wakes up. Programs
        # launched since then start no later than that.
        self._last_end = now if run is None else min(run.end or now, now)
        since = min(sample.since, self._last_end)
        metric.end(sample, self._last_end - since)
        if run is not None:
            run.start, run.end = since, self._last_end

    def stop(self) -> None:
        """Wait for the launched programs, and end the thread."""
        self.launched.put(None)
        self._thread.join(_EXIT_TIMEOUT)


_threads: dict[int, _CompletionThread] = {}
_lock = fork_safe_lock()


def wait_at_exit() -> None:
    """Wait for programs in flight, whose executables are freed next. Call it after the last launch.

    Failures of programs whose results were never read are written to stderr, and set the exit code to 1.
    """
    for device, thread in list(_threads.items()):
        thread.stop()
        unread = [text for text in thread.failures if not xla_errors.is_translated(text)]
        if unread:
            if sys.stderr is not None:
                what = f"a program on xla:{device} failed, and the process ended before its results were read"
                sys.stderr.write(f"torch_xla: {what}:\n{unread[0]}\n")
            process_exit.set_exit_code(1)


def track_completion(device: int, metric: Metric, start: int, awaited: Any, run: DeviceEvent | None = None) -> None:
    """Add the execution time of a launched program to ``metric``.

    Args:
      start: the launch time, in ns of perf_counter.
      awaited: an object whose ``block_until_ready`` returns when the program has ended.
      run: the torch.profiler event whose start and end are set.
    """
    thread = _threads.get(device) or _start_thread(device)
    thread.launched.put((metric, metric.begin(), start, awaited, run))


def mark(device: int) -> Marker:
    """Return a marker after the programs that have been launched on the device."""
    marker, thread = Marker(), _threads.get(device)
    if thread is None:  # nothing was launched
        marker.end(time.perf_counter_ns())
    else:
        thread.launched.put(marker)
    return marker


def _start_thread(device: int) -> _CompletionThread:
    with _lock:
        if device not in _threads:
            _threads[device] = _CompletionThread(device)
        return _threads[device]
