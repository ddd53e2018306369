"""What torch.profiler shows of xla, beside the operations that are recorded: compilations, launches, runs, transfers.

    xla::compile, xla::launch, xla::wait,                  on the thread that spends the time (record_function)
    xla::host_to_device, xla::device_to_host, xla::device_to_device
    xla::execute, xla::interpret                           from beginning to end, on a thread that is called xla:0

A row of ``key_averages()`` is a program: its name has the line that runs it and how many operations it has. A run is
told when the thread that launched it next launches, waits or reads and it has ended; what nobody waits for before the
profile ends is not shown. While no profiler watches the thread, all of this is a question to the recorder.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock

NOTHING: AbstractContextManager[Any] = nullcontext()
_PATIENCE = 5.0  # seconds for the thread that tells, which only an interpreter that ends keeps from it
_thread = threading.local()  # .running: list[Run]


@dataclass(eq=False, slots=True)
class DeviceEvent:
    """A program under way. Times in ns of perf_counter; ``end`` is 0 until somebody has seen it."""

    device: int
    name: str
    start: int
    end: int = 0
    result: weakref.ref[Any] | None = None  # it has ended when this is there

    def has_ended(self) -> bool:
        """Whether it has; ``end`` is set then, to this moment where nobody has seen it before."""
        result = self.result() if self.result is not None else None
        if not self.end and result is not None and not result.is_deleted() and result.is_ready():
            self.end = time.perf_counter_ns()
        return self.end > 0


def is_profiling() -> bool:
    """Whether torch.profiler watches this thread."""
    return bool(recorder.bindings().profiled())


def span(what: str, of: str = "") -> AbstractContextManager[Any]:
    """The block is a row of torch.profiler's: ``xla::what of``."""
    return torch.profiler.record_function(f"xla::{what} {of}".rstrip()) if is_profiling() else NOTHING


def program_label(line: str, ops: int) -> str:
    """What a program is called; tables show the beginning of a name, so that folders are left out."""
    return f"{line.rpartition('/')[2]} ({ops} op{'s'[: ops != 1]})"


def record_device_event(device: int, what: str, of: str, start: int, result: Any = None) -> DeviceEvent | None:
    """Notes what a device does, ``xla::what of``: it is under way, or has ended. None where no profiler watches.

    Args:
      start: when it was launched, in ns of perf_counter.
      result: an array of a program that may be under way; None: it has ended.
    """
    if not is_profiling():
        return None
    run = DeviceEvent(device, f"xla::{what} {of}", start)
    if result is None:
        run.end = time.perf_counter_ns()
    else:
        run.result = weakref.ref(result)
    _open_events().append(run)
    flush_finished_events()
    return run


def flush_finished_events() -> None:
    """Tells the profiler of the programs of this thread that have ended since it was told last."""
    running = _open_events()
    if not running:
        return
    if not is_profiling():
        running.clear()  # of a profile that has ended
        return
    ended = [run for run in running if run.has_ended()]
    running[:] = [run for run in running if run not in ended]
    for device in {run.device for run in ended}:
        _teller(device).tell([run for run in ended if run.device == device])


def _open_events() -> list[DeviceEvent]:
    found: list[DeviceEvent] | None = getattr(_thread, "running", None)
    if found is None:
        found = _thread.running = []
    return found


class _DeviceTrack:
    """A thread as whose row the runs of a device are shown: on that of the host, they would tear its spans."""

    def __init__(self, device: int) -> None:
        self._asked: SimpleQueue[tuple[Any, Sequence[DeviceEvent], threading.Event]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(f"xla:{device}",), name=f"xla:{device}", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Not in a process that was forked from the one that made it."""
        return self._thread.is_alive()

    def tell(self, runs: Sequence[DeviceEvent]) -> None:
        """Adds runs to the profile of this thread, and returns then: it cannot end meanwhile."""
        told = threading.Event()
        self._asked.put((recorder.bindings().Profile(), runs, told))
        told.wait(_PATIENCE)

    def _work(self, name: str) -> None:
        recorder.bindings().name_thread(name)
        while True:
            profile, runs, told = self._asked.get()
            try:
                epoch = time.time_ns() - time.perf_counter_ns()
                for run in runs:
                    profile.add(run.name, run.start + epoch, run.end + epoch)
            finally:
                del profile, runs
                told.set()


_tellers: dict[int, _DeviceTrack] = {}
_lock = fork_safe_lock()


def _teller(device: int) -> _DeviceTrack:
    with _lock:
        if device not in _tellers or not _tellers[device].is_alive():
            _tellers[device] = _DeviceTrack(device)
        return _tellers[device]
