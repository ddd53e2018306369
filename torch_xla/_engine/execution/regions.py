"""torch_xla.compile: a piece of a program that becomes one graph, also in eager mode.

enter: run what is pending -> record (modes.inside) -> leave: run what was recorded; an exception leaves it pending
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ContextDecorator, ExitStack
from types import TracebackType

from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.diagnostics import causes
from torch_xla._engine.execution import barrier, modes
from torch_xla._engine.execution.modes import Region

_named: LruCache[Region] = LruCache(limit=lambda: 1024)


def region(name: str | None, full_graph: bool, max_graphs: int | None) -> Compiled:
    """The context of that name; contexts of one name count their graphs together."""
    if name is None:
        return Compiled(Region("this context", full_graph, max_graphs))
    found = _named.get((name, full_graph, max_graphs))
    if found is None:
        found = Region(name, full_graph, max_graphs)
        _named.put((name, full_graph, max_graphs), found)
    return Compiled(found)


#: By whose method or which function: the regions of its wrappers.
_of_functions: weakref.WeakKeyDictionary[object, dict[object, Region]] = weakref.WeakKeyDictionary()


def of_function(f: Callable[..., object], name: str, full_graph: bool, max_graphs: int | None) -> Compiled:
    """The context of a function; all of the same function, or method of one object, count their graphs together."""
    region = Region(name, full_graph, max_graphs)
    owner = getattr(f, "__self__", f)
    try:
        mine = _of_functions.setdefault(owner, {})
    except TypeError:  # it has no hash, or cannot be referred to weakly
        return Compiled(region)
    return Compiled(mine.setdefault((getattr(f, "__func__", None), name, full_graph, max_graphs), region))


class Compiled(ContextDecorator):
    """One torch_xla.compile. May be entered many times, also by several threads and within itself."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._open: dict[int, list[ExitStack]] = {}  # by thread

    def __enter__(self) -> None:
        with causes.because(causes.BEFORE_COMPILED):
            barrier.mark_step()
        stack = ExitStack()
        state = stack.enter_context(modes.inside(self._region))
        stack.push(lambda kind, error, at: self._finish(state, kind))
        self._open.setdefault(threading.get_ident(), []).append(stack)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        thread = threading.get_ident()
        stack = self._open[thread].pop()
        if not self._open[thread]:
            del self._open[thread]
        stack.__exit__(kind, error, at)

    @staticmethod
    def _finish(state: modes.Open, kind: type[BaseException] | None) -> None:
        state.ended = True
        if kind is None:
            with causes.because(causes.COMPILED):
                barrier.mark_step()
