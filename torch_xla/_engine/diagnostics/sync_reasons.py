"""Why a graph runs now, in words: set around what leads to the executor, asked when it compiles or runs."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import step_timings

SYNC = "user torch_xla.sync"
READ = "most likely user code trying to access tensor value before torch_xla.sync"
LOADER = "torch_xla.sync of a data loader, which ends the step before a batch"
STEP = "an end of torch_xla.step"
STEP_TRACE = "the end of a profiler's StepTrace"
BEFORE_COMPILED = "torch_xla.compile, which runs what is pending before its function"
COMPILED = "the end of a function of torch_xla.compile"
LIMIT = "the graph reached XLA_TRIM_GRAPH_SIZE operations"
NO_BARRIER = "an optimizer's step without a barrier"
REPEATED_READ = "a read in a loop without a barrier, which would compute earlier steps again"


def sync_reason(reason: str) -> AbstractContextManager[None]:
    """What this thread runs in the block, it runs for this reason; an outer reason wins (a loader's that syncs)."""
    found: AbstractContextManager[None] = recorder.bindings().Because(reason)
    return found


def current_sync_reason() -> str:
    """The reason why a graph runs now; without one it is that somebody needs a value."""
    found: str | None = recorder.bindings().reason()
    if found is not None:
        return found
    op = step_timings.current_fallback()
    return f"{op} runs on the CPU and needs its inputs" if op else READ
