"""Report compilations, launches, executions and transfers to torch.profiler as spans, beside the recorded ops.

    xla::compile, xla::launch, xla::wait,                  on the thread that spends the time (record_function)
    xla::host_to_device, xla::device_to_host, xla::device_to_device
    xla::execute, xla::interpret                           from start to end, on a thread named xla:0

A row of ``key_averages()`` is a program; its name has the user line that runs it and the number of ops. An execution
that has ended is reported when the thread that launched it launches, waits or reads again; executions without such an
event before the profile ends are not shown. Without an active profiler, each function costs one call of the recorder.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock

T = TypeVar("T")

NOTHING: AbstractContextManager[Any] = nullcontext()
_TIMEOUT = 5.0  # seconds to wait for the reporting thread, which exceeds it only at interpreter shutdown
_thread = threading.local()  # .running: list[DeviceEvent]


@dataclass(eq=False, slots=True)
class DeviceEvent:
    """An execution on a device. Times are in ns of perf_counter; ``end`` is 0 until the end was observed."""

    device: int
    name: str
    start: int
    end: int = 0
    result: weakref.ref[Any] | None = None  # the execution has ended when this array is ready

    def has_ended(self) -> bool:
        """Return whether the execution has ended; set ``end`` to the current time if it was not observed before."""
        result = self.result() if self.result is not None else None
        if not self.end and result is not None and not result.is_deleted() and result.is_ready():
            self.end = time.perf_counter_ns()
        return self.end > 0


def is_profiling() -> bool:
    """Return whether torch.profiler is active on this thread."""
    return bool(recorder.bindings().profiled())


def span(what: str, label: str = "") -> AbstractContextManager[Any]:
    """Return a context that torch.profiler shows as a span ``xla::what label``."""
    return torch.profiler.record_function(f"xla::{what} {label}".rstrip()) if is_profiling() else NOTHING


def call_in_span(what: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call the function, in a span if a profiler is active. Without one, it costs less than ``span``."""
    if not recorder.bindings().profiled():
        return function(*arguments)
    with span(what):
        return function(*arguments)


def program_label(line: str, ops: int) -> str:
    """Return the name of a program in profiles, without folders, because tables truncate long names."""
    return f"{line.rpartition('/')[2]} ({ops} op{'s'[: ops != 1]})"


def record_device_event(device: int, what: str, label: str, start: int, result: Any = None) -> DeviceEvent | None:
    """Record an execution on a device as ``xla::what label``; return None if no profiler is active.

    Args:
      start: the launch time, in ns of perf_counter.
      result: a result of a program that may be in flight; None if it has ended.
    """
    if not is_profiling():
        return None
    run = DeviceEvent(device, f"xla::{what} {label}", start)
    if result is None:
        run.end = time.perf_counter_ns()
    else:
        run.result = weakref.ref(result)
    _open_events().append(run)
    flush_finished_events()
    return run


def flush_finished_events() -> None:
    """Report the executions of this thread that have ended since the last call to the profiler."""
    running = _open_events()
    if not running:
        return
    if not is_profiling():
        running.clear()  # they belong to a profile that has ended
        return
    ended = [run for run in running if run.has_ended()]
    running[:] = [run for run in running if run not in ended]
    for device in {run.device for run in ended}:
        _device_track(device).report([run for run in ended if run.device == device])


def _open_events() -> list[DeviceEvent]:
    found: list[DeviceEvent] | None = getattr(_thread, "running", None)
    if found is None:
        found = _thread.running = []
    return found


class _DeviceTrack:
    """A thread whose profiler row shows the executions of a device; on the host's row they would break its spans."""

    def __init__(self, device: int) -> None:
        self._queue: SimpleQueue[tuple[Any, Sequence[DeviceEvent], threading.Event]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(f"xla:{device}",), name=f"xla:{device}", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs; it does not after a fork."""
        return self._thread.is_alive()

    def report(self, runs: Sequence[DeviceEvent]) -> None:
        """Add executions to the active profile, and wait for that: the profile cannot end before."""
        done = threading.Event()
        self._queue.put((recorder.bindings().Profile(), runs, done))
        done.wait(_TIMEOUT)

    def _work(self, name: str) -> None:
        recorder.bindings().name_thread(name)
        while True:
            profile, runs, done = self._queue.get()
            try:
                epoch = time.time_ns() - time.perf_counter_ns()
                for run in runs:
                    profile.add(run.name, run.start + epoch, run.end + epoch)
            finally:
                del profile, runs
                done.set()


_tracks: dict[int, _DeviceTrack] = {}
_lock = fork_safe_lock()


def _device_track(device: int) -> _DeviceTrack:
    with _lock:
        if device not in _tracks or not _tracks[device].is_alive():
            _tracks[device] = _DeviceTrack(device)
        return _tracks[device]
