"""Joint launch: replica threads of one process run a graph with collectives as one program.

The threads are the replicas of DataParallel. Each brings its own graph, and the last one to arrive launches the program
for all. Each thread holds the execution lock of its device while it waits, so the last one may set the values of all
graphs' nodes (recorder.launch_joined).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from torch_xla._engine import recorder
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.compilation.graph_function import CheckedOps
from torch_xla._engine.compilation.placement import ReplicaThreadsPlacement
from torch_xla._engine.compilation.program_cache import CompiledProgram
from torch_xla._engine.diagnostics import metrics, observer, xla_errors
from torch_xla._engine.execution import value_errors
from torch_xla._engine.graph.flop_count import NO_WORK
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.parallel import collective_check


def run_on_replica_threads(
    graph_run: GraphRun, place: ReplicaThreadsPlacement, found: CompiledProgram | None
) -> Sequence[jax.Array]:
    """Run the program of all replicas when each has arrived; return this replica's outputs.

    ``found`` is the cached program; without one, the last thread compiles it. Raises RuntimeError if the replicas'
    graphs differ, thread_group.AbandonedError if a replica has left.
    """
    group = thread_group.current_group()
    assert group is not None
    if found is None:
        metrics.count("UncachedSyncTensors")
    signature = found.exchanges if found else place.collective_signature(graph_run.spec)
    record = observer.begin_execution(graph_run, found.work if found else NO_WORK)
    what = collective_check.signature_summary(signature, graph_run.graph.key)
    checked, results = group.run_together(
        replicas.global_ordinal(), what, graph_run, lambda runs: _launch_joined(graph_run, place, runs)
    )
    if checked is not None:
        *results, row = results
        value_errors.note_launch(graph_run, results, row, checked)
    record.launched(results)
    return results  # type: ignore[no-any-return]


def _launch_joined(
    own: GraphRun, place: ReplicaThreadsPlacement, runs: Sequence[GraphRun]
) -> Sequence[tuple[CheckedOps | None, Sequence[jax.Array]]]:
    """Run the program with the joined arguments; return the checked nodes and the outputs of each replica.

    ``own`` is this thread's run.
    """
    found = program_cache.cache.get(place.cache_key)
    if found is None:
        found = program_cache.compile_and_store(own, place, place.join_arguments([run.leaves() for run in runs]))
    if found.handlers is not None:
        found.handlers.set_thread_count()
    arguments = place.join_arguments([[*run.scalars(), *run.leaves()] for run in runs])
    try:
        results: Sequence[Sequence[jax.Array]] = recorder.bindings().launch_joined(
            [run.graph for run in runs], found.executable, arguments
        )
    except jax.errors.JaxRuntimeError as error:
        raise xla_errors.translate_xla_error(error, f"running {found.outline}", own.device, found.outline) from error
    return [(found.checked, own_results) for own_results in results]
