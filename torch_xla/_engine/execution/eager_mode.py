"""Lazy and eager execution: when recorded operations run, and compile regions that override the mode.

    is_eager(): False -> True by set_eager(True); False while a region is open on any thread, or by set_eager(False)

A region is the code that torch_xla.compile runs as one graph. It belongs to the thread that opened it. It may forbid
that thread to run anything before the end of the region, and may limit the number of its different graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings


@dataclass(slots=True)
class CompileRegion:
    """The options of one torch_xla.compile. ``graphs``: keys of the graphs it has run, if limited."""

    name: str
    full_graph: bool
    max_graphs: int | None
    graphs: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class OpenRegion:
    """A region that a thread has entered."""

    region: CompileRegion
    ended: bool = False  # its code has run; its recorded ops may run now
    runs: int = 0  # graphs that this thread has run in it
    early_run: str | None = None  # the user's line of the first one before the end
    #: Called before a program of this thread is launched, with the run, the program and its placed inputs or None.
    on_launch: Callable[[Any, Any, Any], None] | None = None


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[OpenRegion] = []


_thread = _Thread()
_lock = fork_safe_lock()
_requested = False
_lazy = 0  # open regions of all threads
_unlimited = 0  # those without a limit of the graph size

_NO_LIMIT = 2**62


def _update_size_limit() -> None:
    limit = _NO_LIMIT if _unlimited else settings.XLA_TRIM_GRAPH_SIZE
    recorder.bindings().set_pending_limit(1 if is_eager() else limit)


def set_eager(on: bool) -> None:
    """Turn eager mode on or off, for all threads."""
    global _requested
    with _lock:
        _requested = on
        _update_size_limit()


def eager_requested() -> bool:
    """Return the last argument of set_eager."""
    return _requested


def is_eager() -> bool:
    """Return whether operations currently run eagerly."""
    return _requested and not _lazy


@contextmanager
def _recording_scope(uncut: bool) -> Iterator[None]:
    global _lazy, _unlimited
    with _lock:
        _lazy, _unlimited = _lazy + 1, _unlimited + uncut
        _update_size_limit()
    try:
        yield
    finally:
        with _lock:
            _lazy, _unlimited = _lazy - 1, _unlimited - uncut
            _update_size_limit()


@contextmanager
def recording_region(region: CompileRegion, uncut: bool = False) -> Iterator[OpenRegion]:
    """Record the operations of this block without running them. Set ``ended`` of the result before running them.

    With ``uncut``, a graph larger than XLA_TRIM_GRAPH_SIZE is flushed only after the block.
    """
    state = OpenRegion(region)
    with _recording_scope(uncut):
        _thread.open.append(state)
        try:
            yield state
        finally:
            _thread.open.remove(state)


def in_region() -> bool:
    """Return whether this thread is in a compile region."""
    return bool(_thread.open)


def check_run_allowed(key: bytes) -> None:
    """Raise RuntimeError if a region of this thread does not allow to run a graph."""
    for state in _thread.open:
        region = state.region
        if region.full_graph and not state.ended:
            raise RuntimeError(
                f"torch_xla.compile: {region.name} is compiled with full_graph=True, but a value is read before its "
                f"end, at {user_frames.user_line()}. Printing, .item(), .cpu(), `if tensor:` and operations that fall "
                "back to the CPU read values: move them out of it, or compile without full_graph=True."
            )
        if region.max_graphs is not None and key not in region.graphs and len(region.graphs) >= region.max_graphs:
            raise RuntimeError(
                f"torch_xla.compile: {region.name} needs one more graph than max_different_graphs="
                f"{region.max_graphs} allows. New input shapes, and Python values that change the recorded ops, create "
                "new graphs; torch_xla.sync() runs the pending ops."
            )
    for state in _thread.open:
        if state.region.max_graphs is not None:
            state.region.graphs.add(key)
        state.runs += 1
        if not state.ended and state.early_run is None:
            state.early_run = user_frames.user_line()


def notify_launch(run: Any, program: Any, leaves: Any) -> None:
    """Tell the open regions of this thread that a program is about to be launched."""
    for state in _thread.open:
        if state.on_launch is not None:
            state.on_launch(run, program, leaves)
