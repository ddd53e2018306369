"""A graph with collectives that the threads of one process run as one program: each brings its own, the last runs all.

The threads are the replicas of DataParallel. Each holds the execution lock of its own device while it waits, so the
last one may give the nodes of all graphs their values (recorder.launch_together).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import errors, metrics, observer
from torch_xla._engine.execution import programs
from torch_xla._engine.job import replicas
from torch_xla._engine.job.thread_group import ThreadGroup
from torch_xla._engine.parallel import agreement, replicated

if TYPE_CHECKING:
    from torch_xla._engine.execution.step import Step


def run(group: ThreadGroup, step: Step) -> Sequence[jax.Array]:
    """Runs the program of all replicas when each has come; returns this one's results.

    Raises RuntimeError where the replicas' graphs differ, thread_group.AbandonedError where one cannot come.
    """
    known = programs.known_together(step)
    metrics.count("CachedSyncTensors" if known else "UncachedSyncTensors")
    exchanges = known.exchanges if known else agreement.exchanges(step.spec)
    running = observer.execution(step.graph, step.device)
    what = agreement.summary(exchanges, step.graph.key)
    results: Sequence[jax.Array] = group.gather(
        replicas.global_ordinal(), what, step, lambda steps: _run_all(step, steps)
    )
    running.under_way(results)
    return results


def _run_all(own: Step, steps: Sequence[Step]) -> Sequence[Sequence[jax.Array]]:
    """The results of each, of the program on the joined arguments of all; ``own`` is the step of this thread."""
    team = replicated.team_of(own.spec)
    assert team is not None
    found = programs.known_together(own) or programs.compile_together(own, _joined([s.leaves() for s in steps], team))
    if found.handlers is not None:
        found.handlers.take_threads(found.calls_python)
    arguments = _joined([[*step.numbers(), *step.leaves()] for step in steps], team)
    try:
        results: Sequence[Sequence[jax.Array]] = recorder.module().launch_together(
            [step.graph for step in steps], found.executable, arguments
        )
    except jax.errors.JaxRuntimeError as error:
        raise errors.explain(error, f"running {found.outline}", own.device, found.outline) from error
    return results


def _joined(arguments: Sequence[Sequence[Any]], team: replicated.Team) -> list[jax.Array]:
    """An array over the team's devices of what each replica has for the same argument."""
    order = list(team.sharding.mesh.devices.flat)
    with recorder.wide_types():
        joined: list[jax.Array] = []
        for parts in zip(*arguments, strict=True):
            placed = [jax.device_put(part, device) for part, device in zip(parts, order, strict=True)]
            joined.append(jax.make_array_from_single_device_arrays(placed[0].shape, team.sharding, placed))
        return joined
