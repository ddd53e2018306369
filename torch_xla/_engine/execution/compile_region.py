"""torch_xla.compile: runs a function or block as one graph, also in eager mode.

enter: run pending ops -> record (eager_mode.recording_region) -> exit: run the recorded ops

An exception leaves the recorded ops pending.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ContextDecorator, ExitStack
from types import TracebackType

from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.diagnostics import sync_reasons
from torch_xla._engine.execution import barrier, eager_mode
from torch_xla._engine.execution.eager_mode import CompileRegion

_named: LruCache[CompileRegion] = LruCache(limit=lambda: 1024)


def named_region(name: str | None, full_graph: bool, max_graphs: int | None) -> CompileContext:
    """Return the context with this name; contexts with the same name share their graph count."""
    if name is None:
        return CompileContext(CompileRegion("this context", full_graph, max_graphs))
    found = _named.get((name, full_graph, max_graphs))
    if found is None:
        found = CompileRegion(name, full_graph, max_graphs)
        _named.put((name, full_graph, max_graphs), found)
    return CompileContext(found)


#: Function, or the object of a bound method -> the regions of its wrappers.
_of_functions: weakref.WeakKeyDictionary[object, dict[object, CompileRegion]] = weakref.WeakKeyDictionary()


def function_region(f: Callable[..., object], name: str, full_graph: bool, max_graphs: int | None) -> CompileContext:
    """Return the context of a function; those of one function, or method of one object, share their graph count."""
    region = CompileRegion(name, full_graph, max_graphs)
    owner = getattr(f, "__self__", f)
    try:
        mine = _of_functions.setdefault(owner, {})
    except TypeError:  # not hashable or not weakly referenceable
        return CompileContext(region)
    return CompileContext(mine.setdefault((getattr(f, "__func__", None), name, full_graph, max_graphs), region))


class CompileContext(ContextDecorator):
    """The context of one torch_xla.compile. Reentrant, and usable by several threads."""

    def __init__(self, region: CompileRegion) -> None:
        self._region = region
        self._open: dict[int, list[tuple[ExitStack, eager_mode.OpenRegion]]] = {}  # by thread

    def __enter__(self) -> None:
        with sync_reasons.sync_reason(sync_reasons.BEFORE_COMPILED):
            barrier.mark_step()
        stack = ExitStack()
        state = stack.enter_context(eager_mode.recording_region(self._region))
        stack.push(lambda kind, error, at: self._finish(state, kind))
        self._open.setdefault(threading.get_ident(), []).append((stack, state))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        thread = threading.get_ident()
        stack, _ = self._open[thread].pop()
        if not self._open[thread]:
            del self._open[thread]
        stack.__exit__(kind, error, at)

    def innermost_region(self) -> eager_mode.OpenRegion:
        """Return the region that this thread has opened last with this context."""
        return self._open[threading.get_ident()][-1][1]

    @staticmethod
    def _finish(state: eager_mode.OpenRegion, kind: type[BaseException] | None) -> None:
        state.ended = True
        if kind is None:
            with sync_reasons.sync_reason(sync_reasons.COMPILED):
                barrier.mark_step()
