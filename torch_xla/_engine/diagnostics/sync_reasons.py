"""Track the sync reason: why pending operations are compiled and run now, for logs, reports and debug analyses."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import step_timings

SYNC = "user torch_xla.sync"
READ = "value read (.item(), print, ...)"
LOADER = "torch_xla.sync of a data loader before the next batch"
STEP = "end of torch_xla.step"
STEP_TRACE = "end of a profiler StepTrace"
BEFORE_COMPILED = "torch_xla.compile, which runs pending operations before its function"
COMPILED = "end of a torch_xla.compile function"
REPLAYED = "replay of a torch_xla.compile function"
LIMIT = "the graph reached XLA_TRIM_GRAPH_SIZE operations"
NO_BARRIER = "optimizer step without a step barrier"
#: The graph has the first step and the beginning of the second: its site is not that of the later, complete steps.
FIRST_NO_BARRIER = "first optimizer step without a step barrier"
REPEATED_READ = "read in a loop without a step barrier, which would recompute earlier steps"


def sync_reason(reason: str) -> AbstractContextManager[None]:
    """In the block, set the sync reason of this thread; an outer reason (of a data loader) takes precedence."""
    found: AbstractContextManager[None] = recorder.bindings().Because(reason)
    return found


def current_sync_reason() -> str:
    """Return the sync reason of this thread; without one, a value is being read."""
    found: str | None = recorder.bindings().reason()
    if found is not None:
        return found
    op = step_timings.current_fallback()
    return f"CPU fallback of {op}, which needs its inputs" if op else READ
