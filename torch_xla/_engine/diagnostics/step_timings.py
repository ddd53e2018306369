"""Record how each of the last thousand steps spent its time; always enabled.

    thread ── StepRecord (open) ──end_step()──► history of the last HISTORY steps
                │ exclusive time by kind, reads and fallbacks by line, compilations, peak memory

Each thread writes its own open StepRecord; only end_step() takes the lock. Times are *exclusive*: an upload inside a
fallback counts as upload, not as fallback, so the kinds of a step add up. Time of no kind is tracing: Python code and
recording. A thread that never ends a step (a data loader's worker) has an open StepRecord that is never listed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.graph.flop_count import ProgramWork

HISTORY = 1000

K = TypeVar("K")


@dataclass(slots=True)
class CompilationRecord:
    """One compilation: start and duration (ns of perf_counter), number of ops, sync reason and user line.

    ``unexpected``: its line had compiled before, and the tracker has an explanation (recompilation_tracker.py).
    """

    start: int
    duration: int
    ops: int
    cause: str
    line: str
    unexpected: bool = False


@dataclass(slots=True, frozen=True)
class InterpretationRecord:
    """One interpreted graph: duration in ns, ops, user line; ``unstable``: the graph changes on every call."""

    duration: int
    ops: int
    line: str
    unstable: bool


@dataclass(slots=True)
class LineStats:
    """The number of events at a line, and their total duration in ns."""

    count: int = 0
    duration: int = 0

    def add(self, duration: int) -> None:
        self.count += 1
        self.duration += duration


_NOTHING: Mapping[Any, LineStats] = MappingProxyType({})


def _empty_mapping() -> Mapping[Any, LineStats]:
    return _NOTHING


@dataclass(slots=True)
class StepRecord:
    """A thread's step, from one barrier to the next; ``end`` is 0 while open. Times are in ns of perf_counter."""

    thread: str
    start: int
    number: int = -1
    end: int = 0
    spent: dict[str, int] = field(default_factory=dict)  # exclusive time by kind
    # Most steps have none of these and share one empty mapping.
    reads: Mapping[str, LineStats] = field(default_factory=_empty_mapping)  # values read, by the user's line
    fallbacks: Mapping[tuple[str, str], LineStats] = field(default_factory=_empty_mapping)  # by op and the user's line
    compilations: tuple[CompilationRecord, ...] = ()
    interpretations: tuple[InterpretationRecord, ...] = ()
    ops: int = 0  # nodes of the graphs it ran
    work: tuple[ProgramWork, ...] = ()  # of the programs that it launched
    peak_bytes: int = 0

    def add(self, kind: str, duration: int) -> None:
        self.spent[kind] = self.spent.get(kind, 0) + duration

    @property
    def wall(self) -> int:
        return self.end - self.start

    @property
    def is_settled(self) -> bool:
        """Whether every graph was known, or is interpreted on every call: no first launch, no compilation."""
        return not self.compilations and all(run.unstable for run in self.interpretations)

    @property
    def tracing(self) -> int:
        """The time that belongs to no kind."""
        return max(0, self.wall - sum(self.spent.values()))


class _Thread(threading.local):
    def __init__(self) -> None:
        self.step: StepRecord | None = None
        self.active: timed_block | None = None
        self.fallback: tuple[str, str, timed_block] | None = None


#: Called with each ended step, by the thread that ended it.
step_listeners: list[Callable[[StepRecord], None]] = []
_here = _Thread()
_lock = fork_safe_lock()
_history: deque[StepRecord] = deque(maxlen=HISTORY)
_closed = 0


def current_step() -> StepRecord:
    """Return this thread's open step."""
    if _here.step is None:
        _here.step = StepRecord(threading.current_thread().name, time.perf_counter_ns())
    return _here.step


class timed_block:
    """Context that adds its exclusive time, without nested blocks, to this thread's step under ``kind``."""

    __slots__ = ("inner", "kind", "outer", "start", "total")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.inner = self.total = self.start = 0
        self.outer: timed_block | None = None

    def __enter__(self) -> timed_block:
        current_step()
        self.outer, _here.active = _here.active, self
        self.start = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._credit(time.perf_counter_ns())
        _here.active = self.outer

    def _credit(self, now: int) -> None:
        elapsed = now - self.start
        current_step().add(self.kind, elapsed - self.inner)
        if self.outer is not None:
            self.outer.inner += elapsed
        self.total += elapsed
        self.start, self.inner = now, 0


def add_time(kind: str, duration: int) -> None:
    """Add ``duration`` ns of a kind to this thread's step, for which no ``timed_block`` was open."""
    current_step().add(kind, duration)
    if _here.active is not None:
        _here.active.inner += duration


def begin_fallback(op: str, line: str) -> None:
    """Start the time of a CPU fallback of ``op``, called at ``line``."""
    if _here.fallback is not None:  # the previous fallback raised
        _here.active = _here.fallback[2].outer
    block = timed_block("fallback")
    block.__enter__()
    _here.fallback = (op, line, block)


def end_fallback() -> None:
    """End the current CPU fallback. A fallback that raised ends with the next one, or with the step."""
    if _here.fallback is not None:
        op, line, block = _here.fallback
        _here.fallback = None
        block.__exit__()
        step = current_step()
        step.fallbacks = _with_sample(step.fallbacks, (op, line), block.total)


def current_fallback() -> str | None:
    """Return the op whose CPU fallback this thread is running, None if there is none."""
    return _here.fallback[0] if _here.fallback else None


def record_read(line: str, duration: int) -> None:
    """Record that the user read a value at ``line``."""
    step = current_step()
    step.reads = _with_sample(step.reads, line, duration)


def _with_sample(stats: Mapping[K, LineStats], key: K, duration: int) -> Mapping[K, LineStats]:
    """Return the stats of a step as a mutable mapping, with a sample added at ``key``."""
    own = stats if isinstance(stats, dict) else {}
    own.setdefault(key, LineStats()).add(duration)
    return own


def end_step(peak_bytes: int) -> StepRecord:
    """End this thread's step at a barrier. Open blocks (a data loader's around the barrier) continue in the next."""
    global _closed
    step, now = current_step(), time.perf_counter_ns()
    if _here.fallback is not None:
        _here.active, _here.fallback = _here.fallback[2].outer, None
    block = _here.active
    while block is not None:
        block._credit(now)
        block = block.outer
    step.end, step.peak_bytes = now, max(step.peak_bytes, peak_bytes)
    _here.step = StepRecord(step.thread, now)
    with _lock:
        step.number = _closed
        _closed += 1
        _history.append(step)
    for listener in tuple(step_listeners):
        listener(step)
    return step


def steps() -> list[StepRecord]:
    """Return the ended steps of all threads, oldest first."""
    with _lock:
        return list(_history)


def clear() -> None:
    """Delete the ended steps."""
    with _lock:
        _history.clear()
