"""When recorded operations run: at the next barrier, or each at once (eager mode); and regions that say otherwise.

    eager(): false -> true by set_eager(True); false again while a Region is open on any thread, or by set_eager(False)

A Region is a piece of a program that torch_xla.compile makes one graph of. It belongs to the thread that opened it, and
may forbid that thread to run anything before its end, or bound the number of its different graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings


@dataclass(slots=True)
class CompileRegion:
    """What one torch_xla.compile asks for. ``graphs``: the keys of what it has run, if there may be only so many."""

    name: str
    full_graph: bool
    max_graphs: int | None
    graphs: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class OpenRegion:
    """A Region that a thread is in."""

    region: CompileRegion
    ended: bool = False  # its code has run; what it recorded may run now


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[OpenRegion] = []


_thread = _Thread()
_lock = fork_safe_lock()
_wanted = False
_lazy = 0  # regions open, on all threads
_uncut = 0  # those of them that no graph's size ends

_NO_LIMIT = 2**62


def _update_size_limit() -> None:
    limit = _NO_LIMIT if _uncut else settings.XLA_TRIM_GRAPH_SIZE
    recorder.bindings().set_pending_limit(1 if is_eager() else limit)


def set_eager(on: bool) -> None:
    """Eager mode on or off, for all threads."""
    global _wanted
    with _lock:
        _wanted = on
        _update_size_limit()


def eager_requested() -> bool:
    """What set_eager was given last."""
    return _wanted


def is_eager() -> bool:
    """Whether operations run at once now."""
    return _wanted and not _lazy


@contextmanager
def _recording_scope(uncut: bool) -> Iterator[None]:
    global _lazy, _uncut
    with _lock:
        _lazy, _uncut = _lazy + 1, _uncut + uncut
        _update_size_limit()
    try:
        yield
    finally:
        with _lock:
            _lazy, _uncut = _lazy - 1, _uncut - uncut
            _update_size_limit()


@contextmanager
def recording_region(region: CompileRegion, uncut: bool = False) -> Iterator[OpenRegion]:
    """Operations of this block are recorded, not run. Set ``ended`` of what it gives before running them.

    With ``uncut`` a graph that grows beyond XLA_TRIM_GRAPH_SIZE is cut only after the block.
    """
    state = OpenRegion(region)
    with _recording_scope(uncut):
        _thread.open.append(state)
        try:
            yield state
        finally:
            _thread.open.remove(state)


def in_region() -> bool:
    """Whether this thread is in a function that is compiled."""
    return bool(_thread.open)


def check_run_allowed(key: bytes) -> None:
    """Called before a graph is run. Raises RuntimeError where a region of this thread does not allow it."""
    for state in _thread.open:
        region = state.region
        if region.full_graph and not state.ended:
            raise RuntimeError(
                f"torch_xla.compile: {region.name} is compiled with full_graph=True, and a value is needed before its "
                f"end, at {user_frames.user_line()}. Printing, .item(), .cpu(), `if tensor:` and operations that run on the "
                "CPU need values: move them out of it, or compile without full_graph."
            )
        if region.max_graphs is not None and key not in region.graphs and len(region.graphs) >= region.max_graphs:
            raise RuntimeError(
                f"torch_xla.compile: {region.name} would need one more graph than max_different_graphs="
                f"{region.max_graphs} allows. Inputs of other shapes, and Python values that decide what is recorded, "
                "make other graphs; torch_xla.sync() runs what is pending now."
            )
    for state in _thread.open:
        if state.region.max_graphs is not None:
            state.region.graphs.add(key)
