"""When programs end: a step only launches its program, and ExecuteTime is how long that has run.

A thread for each device waits for one program after the other, in the order in which they were launched. A program
counts from its launch, or from the end of the one before it where that was later: devices run one at a time. Until a
program has ended its time is that so far, so that nobody who reads a metric has to wait.

    launched (watch) -> its turn (Lasting.since) -> ended (Metric.end)
                                                 `-> failed (reported at the end of the process unless it was read)
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

#: Seconds that the end of the process waits for a program. A thread that is waiting inside XLA when the interpreter is
#: gone ends the process badly.
_PATIENCE = 5.0

_Program = tuple[Metric, OpenSample, int, Any, DeviceEvent | None]


class _CompletionThread:
    def __init__(self, device: int) -> None:
        self.launched: SimpleQueue[_Program | None] = SimpleQueue()
        self._last_end = 0
        self.failures: deque[str] = deque(maxlen=8)  # XLA's words, of programs that failed after their launch
        self._thread = threading.Thread(target=self._run, name=f"torch_xla: ends of xla:{device}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (program := self.launched.get()) is not None:
            self._see_end(*program)
            del program  # a result, perhaps

    def _see_end(self, metric: Metric, sample: OpenSample, start: int, awaited: Any, run: DeviceEvent | None) -> None:
        sample.since = max(start, self._last_end)
        try:
            awaited.block_until_ready()
        except Exception as error:
            # Whoever reads what failed is told. A result that was taken over is there.
            if isinstance(error, jax.errors.JaxRuntimeError) and "deleted or donated" not in str(error):
                self.failures.append(str(error))
        now = time.perf_counter_ns()
        # Where a profiler watches, the thread that reads may have seen the end before this one was woken: what it
        # launched since then does not begin later than that.
        self._last_end = now if run is None else min(run.end or now, now)
        since = min(sample.since, self._last_end)
        metric.end(sample, self._last_end - since)
        if run is not None:
            run.start, run.end = since, self._last_end

    def stop(self) -> None:
        """Waits for the programs that have been launched."""
        self.launched.put(None)
        self._thread.join(_PATIENCE)


_watchers: dict[int, _CompletionThread] = {}
_lock = fork_safe_lock()


def wait_at_exit() -> None:
    """Waits for programs in flight: their executables are freed next. Run it when nothing launches any more.

    Reports failures of programs whose results nobody has read, on stderr and in the exit code.
    """
    for device, watcher in list(_watchers.items()):
        watcher.stop()
        unread = [text for text in watcher.failures if not xla_errors.is_translated(text)]
        if unread:
            if sys.stderr is not None:
                what = f"a program on xla:{device} failed, and the process ended before its results were read"
                sys.stderr.write(f"torch_xla: {what}:\n{unread[0]}\n")
            process_exit.set_exit_code(1)


def track_completion(device: int, metric: Metric, start: int, awaited: Any, run: DeviceEvent | None = None) -> None:
    """Adds to ``metric`` how long a program of the device runs.

    Args:
      start: when it was launched, in ns of perf_counter.
      awaited: has ``block_until_ready``, which returns when the program has ended.
      run: is told when it began and ended, for torch.profiler.
    """
    watcher = _watchers.get(device) or _start_thread(device)
    watcher.launched.put((metric, metric.begin(), start, awaited, run))


def _start_thread(device: int) -> _CompletionThread:
    with _lock:
        if device not in _watchers:
            _watchers[device] = _CompletionThread(device)
        return _watchers[device]
