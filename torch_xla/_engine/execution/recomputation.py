"""Detects loops without a step barrier whose reads recompute earlier steps, and flushes the graph at these reads.

A read computes the values that it needs. Updates of parameters without an optimizer (``p.data.add_``) are not among
these and stay pending: the next step's loss needs them, and with them all of the step before. The recorder counts how
often reads have computed a node without storing its value. When a read is about to compute nodes a third time, the
graph is flushed instead, the user is warned once, and from then on each read at that line flushes the graph.

    line of a read:   unseen -> recomputes (a read computes nodes a third time) -> flushes at each read, permanently
"""

from __future__ import annotations

from typing import Any

from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.job import thread_group
from torch_xla._engine.parallel import collectives

#: Minimum number of nodes that no read has computed before: fewer are several reads of one step, not a new step.
_LEAST_NEW = 8
#: Number of nodes computed a third time from which a read flushes. Recomputing fewer costs less than a new program.
#: Views of stored values do not count: they cost nothing.
_MOST_RECOMPUTED = 6

_CAUSE = "xla tensors are lazy: without a sync, the graph grows with every step"
_FIX = "call torch_xla.sync() at the end of each step; TORCH_XLA_AUTO_SYNC=0 turns the automatic sync off"

_lines: set[str] = set()


def lines() -> set[str]:
    """Return the user's lines at which reads flush the graph."""
    return set(_lines)


def forget() -> None:
    """Forget all lines. For tests."""
    _lines.clear()


def may_flush(device: int) -> bool:
    """Return whether a read may flush: it involves no other replicas, and no compile region forbids it."""
    return (
        settings.TORCH_XLA_AUTO_SYNC
        and not eager_mode.is_eager()
        and not eager_mode.in_region()
        and not collectives.pending_results(device)
        and thread_group.current_group() is None
    )


def flushes_here() -> bool:
    """Return whether reads at the current user line flush the graph."""
    return bool(_lines) and user_frames.user_line() in _lines


def note(graph: Any) -> bool:
    """Return whether the graph of a read recomputes earlier steps; if so, reads at its line flush from now on."""
    count = graph.recomputed_nodes
    if count < _MOST_RECOMPUTED or graph.new_nodes < _LEAST_NEW:
        return False
    line = user_frames.user_line()
    if not _lines:
        headline = (
            f"no torch_xla.sync() between steps: the value read at {line} recomputes {count} operations of earlier "
        )
        headline += "steps; torch_xla now syncs at every read of this line"
        messages.warn(messages.compose(headline, _CAUSE, _FIX, "missing-sync"))
    _lines.add(line)
    return True
