"""Why a graph runs now, in words: set around what leads to the executor, asked when it compiles or runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._engine.diagnostics import journal

SYNC = "user torch_xla.sync"
READ = "most likely user code trying to access tensor value before torch_xla.sync"
LIMIT = "the graph reached XLA_TRIM_GRAPH_SIZE operations"
CARELESS = "an optimizer's step without a barrier"

_here = threading.local()


@contextmanager
def because(reason: str) -> Iterator[None]:
    """What this thread runs in the block, it runs for this reason; an outer reason wins (a loader's that syncs)."""
    outer = getattr(_here, "reason", None)
    _here.reason = outer or reason
    try:
        yield
    finally:
        _here.reason = outer


def reason() -> str:
    """The reason why a graph runs now; without one it is that somebody needs a value."""
    found: str | None = getattr(_here, "reason", None)
    if found is not None:
        return found
    op = journal.falling_back()
    return f"{op} runs on the CPU and needs its inputs" if op else READ
