"""Raises torch's error for values that a program found to be out of range (lowering/value_checks.py).

    launch                     sync(), a read, a wait
    the result is queued ----> inspected, in the order of the launches; the first failure is raised

The program has run when the error is raised: its values, which replace the donated ones, are those that it computed. So
a step that fails loses nothing, and the next step runs. sync() and reads inspect the results that are ready, which
includes the result of the program that computed the value, and do not wait for others; a wait inspects all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_xla._engine.base import messages
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.graph_function import CheckedOps
from torch_xla._engine.diagnostics import observer
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.value_checks import Failure
from torch_xla._engine.parallel import replica_program
from torch_xla._engine.recorder import source_info


@dataclass(frozen=True, slots=True)
class _Launched:
    """The checks of a launched program: their result, and the nodes that it names."""

    row: Any  # a jax.Array, whose is_ready() has no type
    ops: CheckedOps
    line: str  # the user's line that launched it


_launched: dict[int, deque[_Launched]] = defaultdict(deque)  # by device, oldest first

_AFTER = "it has run, and its tensors have the values that it computed"
_AT_INDEX = "index {value} is out of bounds for dimension {dim} with size {size}"

#: Failure -> the type and text of torch's error.
_ERRORS: dict[Failure, tuple[type[Exception], str]] = {
    Failure.INDEX_ERROR: (IndexError, _AT_INDEX),
    Failure.INDEX_RUNTIME_ERROR: (RuntimeError, _AT_INDEX),
    Failure.INDEX_COPY: (IndexError, f"index_copy_(): {_AT_INDEX}"),
    Failure.INDEX_IN_SELF: (IndexError, "index out of range in self"),
    Failure.FLAT_INDEX: (IndexError, "out of range: tried to access index {value} on a tensor of {size} elements."),
    Failure.BAG_INDEX: (
        RuntimeError,
        "Index {dim} of input takes value {value} which is not in the valid range [0, {size})",
    ),
    Failure.TARGET: (IndexError, "Target {value} is out of bounds."),
    Failure.MARGIN_TARGET: (RuntimeError, "target out of range"),
    Failure.DIVISOR: (RuntimeError, "ZeroDivisionError"),
    Failure.PROBABILITY: (RuntimeError, "probability tensor contains either `inf`, `nan` or element < 0"),
    Failure.PROBABILITY_SUM: (RuntimeError, "invalid multinomial distribution (sum of probabilities <= 0)"),
}


def locate_ops(run: GraphRun, ops: CheckedOps | None) -> CheckedOps:
    """Return the checked nodes of a program with the source locations of this run; call it before the launch.

    ``ops``: the nodes when the program was compiled, perhaps for an equal graph that other lines recorded.
    """
    if not ops or not source_info.is_capturing():
        return ops or {}
    origins = map(source_info.origin_from_id, run.graph.node_origins(list(ops)))
    return {number: (op, origin) for (number, (op, _)), origin in zip(ops.items(), origins, strict=True)}


def note_launch(run: GraphRun, row: Any, ops: CheckedOps) -> None:
    """Queue the result of the checks of a program that was launched, and the nodes that it names."""
    row = replica_program.to_local_array(row)
    if not row.is_ready():
        row.copy_to_host_async()
    line = observer.current_site(run)[2]
    _launched[run.device].append(_Launched(row, ops, line))


def raise_ready(device: int) -> None:
    """Raise the error of the first failed check among the launches that have ended; do not wait for others."""
    queue = _launched.get(device)
    while queue:
        if not queue[0].row.is_ready():
            return
        _inspect(queue)


def raise_all(device: int) -> None:
    """Wait for all launches of the device; raise the error of the first failed check."""
    queue = _launched.get(device)
    while queue:
        _inspect(queue)


def _inspect(queue: deque[_Launched]) -> None:
    try:
        done = queue.popleft()
    except IndexError:  # another thread has inspected it
        return
    row = np.asarray(done.row)
    if row[0]:
        raise _error(done, *map(int, row))


def _error(done: _Launched, failure: int, node: int, dim: int, size: int, value: int) -> Exception:
    kind, text = _ERRORS[Failure(failure)]
    op, origin = done.ops[node]
    source = source_info.format_location(origin)
    advice = "" if source else "; XLA_IR_DEBUG=1 shows the line that recorded it"
    cause = f"{op}{source}, in the graph that ran at {done.line}: {_AFTER}{advice}"
    setting = f"TORCH_XLA_CHECK_INDICES={settings.TORCH_XLA_CHECK_INDICES}"
    fix = f"correct these values where they are made; {setting} made this check, and 0 turns it off"
    return kind(messages.compose(text.format(dim=dim, size=size, value=value), cause, fix, "index-out-of-range"))
