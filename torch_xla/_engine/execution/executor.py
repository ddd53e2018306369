"""Runs recorded graphs on a device: everything that is pending, or what some values need.

The recorder's execution lock lets one thread per device collect and launch at a time. A value that cannot be computed
keeps its error: sync() skips it from then on, and reading it tries again (memory may be free by now) and raises the
error. If an op that is recorded later needs the value, the next sync() raises once, after it has run everything else.

    value                                sync()                           read
    can be computed                      computed                         computed
    failed earlier                       skipped                          tried again
    new, depends on a failed value       skipped; raises the error once   tried again, with its dependencies

The path of one graph, from its collection to the values of its nodes:

    collected -> program cached, or described, lowered and compiled -> launched: the nodes have their values
        |    +-- not worth compiling (compile_policy.py) -> interpreted: the nodes have their values
        +------------------ any error: nothing has changed ------------+

Diagnostics (dumps, reports, step timings) run before the launch, where an error leaves the state unchanged, or after
it, where their errors are only logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import placement, program_cache
from torch_xla._engine.compilation.placement import Placement, ReplicaThreadsPlacement
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics, observer, sync_reasons, xla_errors
from torch_xla._engine.execution import (
    compile_policy,
    eager_mode,
    graph_dump,
    op_by_op,
    recomputation,
    replica_threads,
    value_errors,
)
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.lowering.rules import jax_call
from torch_xla._engine.parallel import collectives, replica_program, watchdog


def sync_device(device: int, wait: bool = False) -> None:
    """Run everything pending on the device; with ``wait``, block until it is done, else return after the launch.

    Raises the first error of a value that could not be computed, after everything else has been launched.
    """
    devices.check_not_forked()  # before any lock: a thread of the parent process may have held it
    results = recorder.bindings().with_execution_lock(device, _sync, device)
    if wait:
        wait_values(results, device)
        value_errors.raise_all(device)
    else:
        value_errors.raise_ready(device)


def _sync(device: int) -> Sequence[jax.Array]:
    one_by_one = settings.XLA_SYNC_TENSORS_OPBYOP
    section = graph_dump.SYNC_OP_BY_OP if one_by_one else graph_dump.SYNC
    first: LoweringError | None = None
    results: Sequence[jax.Array] = ()
    while True:
        graph = recorder.bindings().collect(device)
        try:
            if graph.root_count:
                results = _run_graph(graph, one_by_one, section)
            break
        except LoweringError as error:
            # Only values that depend on that op have failed; the others form a smaller graph.
            first = first or error
    collectives.release_pending(device)
    _trim_functions(graph.device)
    if first is not None:
        raise first
    if graph.blocked_count:
        count = graph.blocked_count
        graph.fail_blocked()
        raise _repeat_failure(graph.failure, f"{count} tensor{'s'[: count != 1]} recorded since then")
    return results


def _repeat_failure(error: Exception, what: str) -> Exception:
    """Recreate an error that was raised before, because ``what`` depends on a value that it left uncomputed."""
    return xla_errors.recreate_error(
        error, f"{error}\n  ({what} cannot be computed: an operand failed earlier with this error)"
    )


def materialize(nodes: Sequence[Any], device: int) -> None:
    """Give the recorder's ``nodes`` of one device values, which may still be computing."""
    devices.check_not_forked()
    recorder.bindings().with_execution_lock(device, _materialize, nodes, device)


def _materialize(nodes: Sequence[Any], device: int) -> None:
    pending = [node for node in nodes if node.pending]
    if not pending:
        return
    for result in collectives.pending_results_before(device, pending):
        _compute([result], device)
    if recomputation.may_flush(device):
        _compute_or_flush(pending, device)
    else:
        _compute(pending, device)


def _compute_or_flush(pending: Sequence[Any], device: int) -> None:
    """Compute what a read needs; flush the graph if the line of the read recomputes earlier steps."""
    if not recomputation.flushes_here():
        graph = recorder.bindings().collect(device, pending)
        if not recomputation.note(graph):
            _run_part(graph)
            return
        del graph
    metrics.count("GraphFlush")
    with sync_reasons.sync_reason(sync_reasons.REPEATED_READ):
        _sync(device)
    left = [node for node in pending if node.pending]
    if left:
        _compute(left, device)


def _compute(pending: Sequence[Any], device: int) -> None:
    _run_part(recorder.bindings().collect(device, pending))


def _run_part(graph: Any) -> None:
    one_by_one = settings.XLA_GET_TENSORS_OPBYOP
    section = graph_dump.GET_OP_BY_OP if one_by_one else graph_dump.SYNC
    if graph.root_count:  # 0: computed together with an earlier read
        _run_graph(graph, one_by_one, section)
    _trim_functions(graph.device)


def _run_graph(graph: Any, op_by_op_requested: bool, section: str) -> Sequence[jax.Array]:
    """Compute a collected graph and set its nodes' values. Return the values, which may still be computing.

    Raises LoweringError, XlaError, torch.OutOfMemoryError, or an unexpected error. The requested values are then marked
    as failed (Graph.fail): if they stayed pending, every later graph would contain them and fail. An interrupt
    (KeyboardInterrupt) marks nothing.
    """
    run = GraphRun(graph, op_by_op_requested or eager_mode.is_eager(), section)
    eager_mode.check_run_allowed(graph.key)
    devices.devices()  # raises in a child process forked after the backend has started
    try:
        if settings.XLA_SAVE_TENSORS_FILE is not None:
            graph_dump.append_graph(run)
        return _compute_graph(run)
    except Exception as error:
        node = error.node if isinstance(error, LoweringError) else None
        graph.fail(xla_errors.recreate_error(error, *error.args), node)
        raise


def _compute_graph(run: GraphRun) -> Sequence[jax.Array]:
    if run.op_by_op and placement.is_alone(run):
        return _run_op_by_op(run)
    found = program_cache.lookup_program(run)
    place = Placement.of(run) if found is None else found.placement
    if type(place) is ReplicaThreadsPlacement:  # isinstance checks the ABC's registry at every launch
        return replica_threads.run_on_replica_threads(run, place, found)
    leaves = place.place_inputs(run.graph)
    if found is None:
        results = compile_policy.maybe_interpret(run, place)
        if results is not None:
            return results
        metrics.count("UncachedSyncTensors")
        found = program_cache.compile_and_store(run, place, leaves or run.leaves())
    return _launch(run, found, leaves)


def _launch(
    run: GraphRun, found: program_cache.CompiledProgram, leaves: Sequence[jax.Array] | None
) -> Sequence[jax.Array]:
    """Launch a program with the graph's inputs, or with ``leaves``: the inputs placed as the program requires."""
    group = found.placement.group
    if group is not None:
        watchdog.on_launch(found.exchanges, group)
    if found.handlers is not None:
        found.handlers.set_thread_count()
    checked = value_errors.locate_ops(run, found.checked)
    if eager_mode.in_region():
        eager_mode.notify_launch(run, found, leaves)
    record = observer.begin_execution(run, found.work)
    try:
        with record.span:
            results, token = run.graph.launch(found.executable, leaves)
    except jax.errors.JaxRuntimeError as error:
        raise xla_errors.translate_xla_error(error, f"running {found.outline}", run.device, found.outline) from error
    if found.checked is not None:
        *results, row = results
        value_errors.note_launch(run, results, row, checked)
    record.launched(results, token)
    if group is not None:
        watchdog.on_launched(results, found.sizes.smallest)
    return results  # type: ignore[no-any-return]


def _run_op_by_op(run: GraphRun) -> Sequence[jax.Array]:
    start = time.perf_counter_ns()
    results, rows = op_by_op.run_op_by_op(run, [replica_program.to_local_array(leaf) for leaf in run.leaves()])
    checked = value_errors.locate_ops(run, {number: (op, None) for number, op, _ in rows})
    run.graph.finish(results)
    for number, _, row in rows:
        value_errors.note_launch(run, results, row, {0: checked[number]})
    observer.on_op_by_op_done(run.device, start, eager_mode.is_eager())
    return results


def _trim_functions(device: int) -> None:
    """Evict functions of call_jax if their table is full and no recorded graph uses one."""
    if jax_call.is_full() and not any(node.pending for node in recorder.bindings().live_nodes(device)):
        jax_call.trim(device, devices.count())


def wait_device(device: int) -> None:
    """Block until everything launched on the device is done."""
    devices.check_not_forked()
    wait_values(recorder.bindings().live_buffers(device), device)
    value_errors.raise_all(device)


def wait_values(values: Sequence[jax.Array], device: int) -> None:
    """Block until these values of a device are computed. Raises the errors of their computations."""
    with xla_errors.translate_xla_errors(lambda: "waiting for a graph", device):
        if observer.wait(values):
            return
        # A program launched concurrently by another thread has overwritten donated values. While this thread has the
        # execution lock no program is launched, and the outputs of all running programs are live buffers.
        recorder.bindings().with_execution_lock(device, lambda: observer.wait(recorder.bindings().live_buffers(device)))


def for_each_device(call: Callable[[int], None]) -> None:
    """Call ``call(ordinal)`` for every device, if a backend has started."""
    if devices.backend_started():
        for ordinal in range(devices.count()):
            call(ordinal)
