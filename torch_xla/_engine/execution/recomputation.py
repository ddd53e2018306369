"""Finds loops that read a value in each step, end no step, and so compute all earlier steps again at each read.

A read runs what its value needs. What updates the parameters without an optimizer (``p.data.add_``) is not among that,
and stays pending: the next step's loss needs it, and with it the whole step before. The recorder counts how often reads
have computed a node without keeping its value. When a read is about to compute nodes a third time, the whole graph is
cut instead, the user is warned once, and from then on each read at that line cuts.

    line of a read:   unseen -> recomputes (a read there computes nodes a third time) -> cuts at each read, for good
"""

from __future__ import annotations

import warnings
from typing import Any

from torch_xla._engine.base import user_frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.job import thread_group
from torch_xla._engine.parallel import collectives

#: Nodes that no read has computed before: fewer are several reads of one step, not another step of a loop.
_LEAST_NEW = 8
#: Nodes that are computed a third time, from which on a read cuts. A few cost less than another program.
_MOST_RECOMPUTED = 8

_MESSAGE = (
    "torch_xla: reading a value at {line} recomputes {count} operations of earlier steps: xla tensors are lazy, and "
    "without a barrier the graph grows with every step. From now on, all pending operations run when this line reads a "
    "value. Call `torch_xla.sync()` at the end of each step; set XLA_AUTO_BARRIER=0 to turn this off."
)

_lines: set[str] = set()


def lines() -> set[str]:
    """The lines of the user's at which reads cut the graph."""
    return set(_lines)


def forget() -> None:
    """Drops all lines. For tests."""
    _lines.clear()


def may_cut(device: int) -> bool:
    """Whether a read may cut: what other replicas do at their reads must not matter, nor may a region forbid it."""
    return (
        settings.XLA_AUTO_BARRIER
        and not eager_mode.is_eager()
        and not eager_mode.in_region()
        and not collectives.pending_results(device)
        and thread_group.current_group() is None
    )


def cuts_here() -> bool:
    """Whether reads at the user's line cut the graph."""
    return bool(_lines) and user_frames.user_line() in _lines


def note(graph: Any) -> bool:
    """Whether the graph of a read computes earlier steps again; if so, its line cuts from now on."""
    count = graph.recomputed_nodes
    if count < _MOST_RECOMPUTED or graph.new_nodes < _LEAST_NEW:
        return False
    line = user_frames.user_line()
    if not _lines:
        frame = user_frames.user_frame()
        where = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else (__file__, 0)
        warnings.warn_explicit(_MESSAGE.format(line=line, count=count), UserWarning, *where)
    _lines.add(line)
    return True
