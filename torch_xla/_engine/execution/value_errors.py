"""Raises torch's error for values that a program finds out of range (lowering/value_checks.py), and for assertions.

    launch                     sync(), a read, a wait
    the result is queued ----> inspected, in the order of the launches; the first failure is raised

An assertion (torch._assert_async) waits before that until a program has computed its value:

    _assert_async              sync(), a read, a wait
    kept with its message ---> has a value: queued; has none: kept

The program has run when the error is raised: its values, which replace the donated ones, are those that it computed. So
a step that fails loses nothing, and the next step runs. sync() inspects the results that are ready and waits for none.
A read also inspects those up to the program that computed the value. A wait inspects all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.graph_function import CheckedOps
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.diagnostics import observer
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.value_checks import Failure
from torch_xla._engine.parallel import replica_program
from torch_xla._engine.recorder import source_info


@dataclass(frozen=True, slots=True)
class _Launched:
    """The checks of a launched program: their result, and the nodes that it names."""

    row: Any  # a jax.Array, whose is_ready() has no type
    results: frozenset[int]  # ids, if the row was not ready; this does not keep the results alive
    ops: CheckedOps
    line: str  # the user's line that launched it

    def find_error(self) -> Exception | None:
        """Return the error of the first failed check; waits for the row."""
        row = np.asarray(self.row)
        return _error(self, *map(int, row)) if row[0] else None


@dataclass(frozen=True, slots=True)
class _Asserted:
    """The value of an assertion that a program has computed."""

    row: Any  # a jax.Array: whether the assertion failed
    assertion: _Assertion

    def find_error(self) -> Exception | None:
        """Return the error of the assertion if it failed; waits for the value."""
        return self.assertion.error() if np.asarray(self.row).item() else None


@dataclass(frozen=True, slots=True)
class _Assertion:
    """A call of torch._assert_async: a tensor that is true if the assertion fails, its message, and the user's line."""

    failed: torch.Tensor
    message: str
    line: str

    def error(self) -> Exception:
        cause = f"the value that torch._assert_async checks at {self.line} is zero; its program has run"
        fix = "correct the values that it is computed from; the tensors of the step have the values that it computed"
        return RuntimeError(messages.compose(self.message, cause, fix))


_launched: dict[int, deque[_Launched | _Asserted]] = defaultdict(deque)  # by device, oldest first
_asserted: dict[int, list[_Assertion]] = {}  # by device: those without a value, oldest first
_lock = fork_safe_lock()  # of _asserted
_library = torch.library.Library("aten", "IMPL")

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


def note_launch(run: GraphRun, results: Sequence[jax.Array], row: Any, ops: CheckedOps) -> None:
    """Queue the result of the checks of a program that was launched, and the nodes that it names.

    ``results``: the other results of the program, as the graph's nodes hold them.
    """
    row = replica_program.to_local_array(row)
    ids: frozenset[int] = frozenset()
    if not row.is_ready():
        if not capabilities.shares_host_memory(devices.device(run.device)):
            row.copy_to_host_async()
        ids = frozenset(map(id, results))
    line = observer.current_site(run)[2]
    _launched[run.device].append(_Launched(row, ids, ops, line))


def define() -> None:
    """Implement torch._assert_async for xla tensors."""
    _library.impl("_assert_async", _assert_async, "XLA")
    _library.impl("_assert_async.msg", _assert_async, "XLA")


def assertion_count(device: int) -> int:
    """Return how many assertions wait for a value."""
    return len(_asserted.get(device, ()))


def _assert_async(condition: torch.Tensor, message: str | None = None) -> None:
    if condition.numel() != 1:
        values = "more than one value" if condition.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {values} is ambiguous")
    if message is None:
        message = "Expected Tensor with single nonzero value, but got zero"
    assertion = _Assertion(condition == 0, message or "Assertion is failed", user_frames.user_line())
    with _lock:
        _asserted.setdefault(condition.device.index, []).append(assertion)


def _queue_assertions(device: int) -> None:
    """Queue the assertions whose value a program has computed or is computing."""
    with _lock:
        waiting = _asserted.pop(device, [])
        for assertion in waiting:
            (node,) = recorder.bindings().nodes_of([assertion.failed])
            if node.buffer is None:
                _asserted.setdefault(device, []).append(assertion)
            else:
                row = replica_program.to_local_array(node.buffer)
                _launched[device].append(_Asserted(row, assertion))


def raise_computed(device: int, buffer: jax.Array) -> None:
    """Raise the error of the first failed check among the launches up to the one that computed a value, and the ended.

    The value is there, but XLA may note the results of one program as ready one after the other. A result that was
    freed may have had the same id; the read waits for one launch too many then.
    """
    queue = _launched.get(device)
    if queue:
        entries = enumerate(list(queue), 1)
        computed = [n for n, done in entries if isinstance(done, _Launched) and id(buffer) in done.results]
        for _ in range(computed[-1] if computed else 0):
            _inspect(queue)
    raise_ready(device)


def raise_ready(device: int) -> None:
    """Raise the error of the first failed check among the launches that have ended; do not wait for others."""
    if _asserted:
        _queue_assertions(device)
    queue = _launched.get(device)
    while queue:
        if not queue[0].row.is_ready():
            return
        _inspect(queue)


def raise_all(device: int) -> None:
    """Wait for all launches of the device; raise the error of the first failed check."""
    if _asserted:
        _queue_assertions(device)
    queue = _launched.get(device)
    while queue:
        _inspect(queue)


def _inspect(queue: deque[_Launched | _Asserted]) -> None:
    try:
        done = queue.popleft()
    except IndexError:  # another thread has inspected it
        return
    error = done.find_error()
    if error is not None:
        raise error


def _error(done: _Launched, failure: int, node: int, dim: int, size: int, value: int) -> Exception:
    kind, text = _ERRORS[Failure(failure)]
    op, origin = done.ops[node]
    source = source_info.format_location(origin)
    advice = "" if source else "; XLA_IR_DEBUG=1 shows the line that recorded it"
    cause = f"{op}{source}, in the graph that ran at {done.line}: {_AFTER}{advice}"
    setting = f"TORCH_XLA_CHECK_INDICES={settings.TORCH_XLA_CHECK_INDICES}"
    fix = f"correct these values where they are made; {setting} made this check, and 0 turns it off"
    return kind(messages.compose(text.format(dim=dim, size=size, value=value), cause, fix, "index-out-of-range"))
