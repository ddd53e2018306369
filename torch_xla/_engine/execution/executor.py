"""Runs what has been recorded on a device: all of it, or what some values need.

One thread at a time, per device, collects and launches (the recorder's ``exclusively``). A value that cannot be
computed keeps the error: sync() leaves it out from then on, and reading it tries again (memory may be free by now),
which raises what stands in the way. What is recorded later and needs it makes the next sync() raise, once, after the
rest has run.

    value                              sync()                               read
    computable                         computed                             computed
    failed before                      left out                             tried again
    recorded since, needs a failed     left out; that error, once           tried again, with what it needs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import causes, errors, metrics, observer
from torch_xla._engine.execution import dump, recomputation
from torch_xla._engine.execution.step import Step
from torch_xla._engine.lowering import jax_call
from torch_xla._engine.lowering.apply import LoweringError
from torch_xla._engine.parallel import collectives


def sync_device(device: int, wait: bool = False) -> None:
    """Runs everything pending on the device; with ``wait`` returns when it is done, else when it is under way.

    Raises the first error of what could not be computed, when all else is under way.
    """
    devices.check_process()  # before any lock: a thread of the parent may have held it
    results = recorder.module().exclusively(device, _sync, device)
    if wait:
        wait_for(results, device)


def _sync(device: int) -> Sequence[jax.Array]:
    one_by_one = settings.XLA_SYNC_TENSORS_OPBYOP
    section = dump.SYNC_OP_BY_OP if one_by_one else dump.SYNC
    first: LoweringError | None = None
    results: Sequence[jax.Array] = ()
    while True:
        graph = recorder.module().collect(device)
        try:
            if graph.root_count:
                results = Step(graph, one_by_one, section).run()
            break
        except LoweringError as error:
            # Only what needs that operation has failed; the rest makes a smaller graph.
            first = first or error
    collectives.release(device)
    _trim_functions(graph.device)
    if first is not None:
        raise first
    if graph.blocked_count:
        count = graph.blocked_count
        graph.fail_blocked()
        raise _again(graph.failure, f"{count} tensor{'s'[: count != 1]} recorded since then")
    return results


def _again(error: Exception, what: str) -> Exception:
    """An error that was raised before, for ``what`` needs a value that it has left without one."""
    return errors.recreate_error(
        error, f"{error}\n  ({what} cannot be computed: this error, raised before, left out what is needed)"
    )


def materialize(nodes: Sequence[Any], device: int) -> None:
    """Makes sure that the recorder's ``nodes`` of one device have values (which may still be computing)."""
    devices.check_process()
    recorder.module().exclusively(device, _materialize, nodes, device)


def _materialize(nodes: Sequence[Any], device: int) -> None:
    pending = [node for node in nodes if node.pending]
    if not pending:
        return
    for result in collectives.unread_before(device, pending):
        _compute([result], device)
    if recomputation.may_cut(device):
        _compute_or_cut(pending, device)
    else:
        _compute(pending, device)


def _compute_or_cut(pending: Sequence[Any], device: int) -> None:
    """Computes what a read needs; all that is pending, where the read's line computes earlier steps again."""
    if not recomputation.cuts_here():
        graph = recorder.module().collect(device, pending)
        if not recomputation.note(graph):
            _run_part(graph)
            return
        del graph
    metrics.count("GraphCut")
    with causes.because(causes.REPEATED_READ):
        _sync(device)
    left = [node for node in pending if node.pending]
    if left:
        _compute(left, device)


def _compute(pending: Sequence[Any], device: int) -> None:
    _run_part(recorder.module().collect(device, pending))


def _run_part(graph: Any) -> None:
    one_by_one = settings.XLA_GET_TENSORS_OPBYOP
    section = dump.GET_OP_BY_OP if one_by_one else dump.SYNC
    if graph.root_count:  # 0: computed with what was read before it
        Step(graph, one_by_one, section).run()
    _trim_functions(graph.device)


def _trim_functions(device: int) -> None:
    """Makes room among the functions that graphs call, where nothing that is recorded needs one."""
    if jax_call.is_full() and not any(node.pending for node in recorder.module().live_nodes(device)):
        jax_call.trim(device, devices.count())


def wait(device: int) -> None:
    """Waits for all that has been started on the device."""
    devices.check_process()
    wait_for(recorder.module().live_buffers(device), device)


def wait_for(values: Sequence[jax.Array], device: int) -> None:
    """Waits for these values of a device. Raises what computing them raised."""
    with errors.explained(lambda: "waiting for a graph", device):
        if observer.wait(values):
            return
        # A program that another thread has started meanwhile took over memory of theirs. With the execution lock no
        # other one starts, and whatever was running has its results among the buffers there are now.
        recorder.module().exclusively(device, lambda: observer.wait(recorder.module().live_buffers(device)))


def on_devices(call: Callable[[int], None]) -> None:
    """Calls ``call(ordinal)`` for every device, if a backend has started."""
    if devices.started():
        for ordinal in range(devices.count()):
            call(ordinal)
