"""Runs what has been recorded on a device: all of it, or what some values need.

One thread at a time, per device, collects and launches (the recorder's ``exclusively``). A value that cannot be
computed keeps the error: sync() leaves it out from then on, and reading it tries again (memory may be free by now),
which raises what stands in the way. What is recorded later and needs it makes the next sync() raise, once, after the
rest has run.

    value                              sync()                               read
    computable                         computed                             computed
    failed before                      left out                             tried again
    recorded since, needs a failed     left out; that error, once           tried again, with what it needs

One graph, from its collection to the values of its nodes:

    collected -> program found, or described, lowered and compiled -> launched: the nodes have their values
        |    +-- not worth a program (compile_policy.py) -> interpreted: the nodes have their values
        +------------------ any error: nothing has changed ------------+

What watches (dumps, reports, journals) looks before the launch, where it may fail without harm, or after it, where its
errors are logged instead.
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
from torch_xla._engine.execution import compile_policy, eager_mode, graph_dump, op_by_op, recomputation, replica_threads
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.lowering.rules import jax_call
from torch_xla._engine.parallel import collectives, replica_program, watchdog


def sync_device(device: int, wait: bool = False) -> None:
    """Runs everything pending on the device; with ``wait`` returns when it is done, else when it is under way.

    Raises the first error of what could not be computed, when all else is under way.
    """
    devices.check_not_forked()  # before any lock: a thread of the parent may have held it
    results = recorder.bindings().with_execution_lock(device, _sync, device)
    if wait:
        wait_values(results, device)


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
            # Only what needs that operation has failed; the rest makes a smaller graph.
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
    """An error that was raised before, for ``what`` needs a value that it has left without one."""
    return xla_errors.recreate_error(
        error, f"{error}\n  ({what} cannot be computed: this error, raised before, left out what is needed)"
    )


def materialize(nodes: Sequence[Any], device: int) -> None:
    """Makes sure that the recorder's ``nodes`` of one device have values (which may still be computing)."""
    devices.check_not_forked()
    recorder.bindings().with_execution_lock(device, _materialize, nodes, device)


def _materialize(nodes: Sequence[Any], device: int) -> None:
    pending = [node for node in nodes if node.pending]
    if not pending:
        return
    for result in collectives.pending_results_before(device, pending):
        _compute([result], device)
    if recomputation.may_cut(device):
        _compute_or_cut(pending, device)
    else:
        _compute(pending, device)


def _compute_or_cut(pending: Sequence[Any], device: int) -> None:
    """Computes what a read needs; all that is pending, where the read's line computes earlier steps again."""
    if not recomputation.cuts_here():
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
    if graph.root_count:  # 0: computed with what was read before it
        _run_graph(graph, one_by_one, section)
    _trim_functions(graph.device)


def _run_graph(graph: Any, op_by_op_wanted: bool, section: str) -> Sequence[jax.Array]:
    """Computes a collected graph, and gives its nodes their values. Returns these; they may still be computing.

    Raises where that cannot be done: LoweringError, XlaError, torch.OutOfMemoryError, or an unexpected one. The
    values that were asked for are then noted to have failed (Graph.fail): pending as before, they would be in every
    later graph, which would fail with them. An interrupt (KeyboardInterrupt) fails nothing.
    """
    run = GraphRun(graph, op_by_op_wanted or eager_mode.is_eager(), section)
    eager_mode.check_run_allowed(graph.key)
    devices.devices()  # raises in a process that was forked from one with programs and buffers
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
    if type(place) is ReplicaThreadsPlacement:  # isinstance asks an ABC's registry, in every launch
        return replica_threads.run_on_replica_threads(run, place, found)
    leaves = place.place_inputs(run.graph)
    if found is None:
        results = compile_policy.maybe_interpret(run, place)
        if results is not None:
            return results
        metrics.count("UncachedSyncTensors")
        found = program_cache.compile_and_store(run, place, leaves or run.leaves())
    if not found.repeated:
        compile_policy.note_launch(run, found)
    return _launch(run, found, leaves)


def _launch(
    run: GraphRun, found: program_cache.CompiledProgram, leaves: Sequence[jax.Array] | None
) -> Sequence[jax.Array]:
    """Runs a program on the graph's leaves, or on ``leaves``: the same ones as it takes them."""
    group = found.placement.group
    if group is not None:
        watchdog.on_launch(found.exchanges, group)
    if found.handlers is not None:
        found.handlers.set_thread_count(found.calls_python)
    record = observer.begin_execution(run)
    try:
        with record.span:
            results, token = run.graph.launch(found.executable, leaves)
    except jax.errors.JaxRuntimeError as error:
        raise xla_errors.translate_xla_error(error, f"running {found.outline}", run.device, found.outline) from error
    record.launched(results, token)
    if group is not None:
        watchdog.on_launched(results, found.sizes.smallest)
    return results  # type: ignore[no-any-return]


def _run_op_by_op(run: GraphRun) -> Sequence[jax.Array]:
    start = time.perf_counter_ns()
    results = op_by_op.run_op_by_op(run, [replica_program.to_local_array(leaf) for leaf in run.leaves()])
    run.graph.finish(results)
    observer.on_op_by_op_done(run.device, start, eager_mode.is_eager())
    return results


def _trim_functions(device: int) -> None:
    """Makes room among the functions that graphs call, where nothing that is recorded needs one."""
    if jax_call.is_full() and not any(node.pending for node in recorder.bindings().live_nodes(device)):
        jax_call.trim(device, devices.count())


def wait_device(device: int) -> None:
    """Waits for all that has been started on the device."""
    devices.check_not_forked()
    wait_values(recorder.bindings().live_buffers(device), device)


def wait_values(values: Sequence[jax.Array], device: int) -> None:
    """Waits for these values of a device. Raises what computing them raised."""
    with xla_errors.translate_xla_errors(lambda: "waiting for a graph", device):
        if observer.wait(values):
            return
        # A program that another thread has started meanwhile took over memory of theirs. With the execution lock no
        # other one starts, and whatever was running has its results among the buffers there are now.
        recorder.bindings().with_execution_lock(device, lambda: observer.wait(recorder.bindings().live_buffers(device)))


def for_each_device(call: Callable[[int], None]) -> None:
    """Calls ``call(ordinal)`` for every device, if a backend has started."""
    if devices.backend_started():
        for ordinal in range(devices.count()):
            call(ordinal)
