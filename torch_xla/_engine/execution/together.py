"""A graph with collectives that the threads of one process run as one program: each brings its own, the last runs all.

The threads are the replicas of DataParallel. Each holds the execution lock of its own device while it waits, so the
last one may give the nodes of all graphs their values (recorder.launch_together).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import errors, metrics, observer
from torch_xla._engine.execution import programs
from torch_xla._engine.execution.placement import ReplicaThreadsPlacement
from torch_xla._engine.execution.programs import Program
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.parallel import agreement


def run(graph_run: GraphRun, place: ReplicaThreadsPlacement, found: Program | None) -> Sequence[jax.Array]:
    """Runs the program of all replicas when each has come; returns this one's results.

    ``found`` is the program, if it is known; else the last thread compiles it. Raises RuntimeError where the replicas'
    graphs differ, thread_group.AbandonedError where one cannot come.
    """
    group = thread_group.current()
    assert group is not None
    if found is None:
        metrics.count("UncachedSyncTensors")
    signature = found.exchanges if found else place.collective_signature(graph_run.spec)
    record = observer.execution(graph_run)
    what = agreement.summary(signature, graph_run.graph.key)
    results: Sequence[jax.Array] = group.gather(
        replicas.global_ordinal(), what, graph_run, lambda runs: _run_all(graph_run, place, runs)
    )
    record.under_way(results)
    return results


def _run_all(own: GraphRun, place: ReplicaThreadsPlacement, runs: Sequence[GraphRun]) -> Sequence[Sequence[jax.Array]]:
    """The results of each, of the program on the joined arguments of all; ``own`` is the run of this thread."""
    found = programs.cache.get(place.cache_key)
    if found is None:
        found = programs.compiled(own, place, place.join_arguments([run.leaves() for run in runs]))
    if found.handlers is not None:
        found.handlers.take_threads(found.calls_python)
    arguments = place.join_arguments([[*run.scalars(), *run.leaves()] for run in runs])
    try:
        results: Sequence[Sequence[jax.Array]] = recorder.module().launch_together(
            [run.graph for run in runs], found.executable, arguments
        )
    except jax.errors.JaxRuntimeError as error:
        raise errors.explain(error, f"running {found.outline}", own.device, found.outline) from error
    return results
