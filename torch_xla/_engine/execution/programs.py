"""Compiled graphs, ready to be launched, and the cache of them: for a device, a team of replicas, threads, a mesh.

key of a program = (for whom, the recorder's key of the graph, how exact its products are)

for whom      a device's ordinal; all replicas that threads of this process drive, by their devices; or the mesh
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import jax

from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.execution import compilation
from torch_xla._engine.execution.compilation import Program
from torch_xla._engine.job import replicas
from torch_xla._engine.lowering import jax_call
from torch_xla._engine.parallel import agreement, replicated, sharded

if TYPE_CHECKING:
    from torch_xla._engine.execution.step import Step

#: In place of a device's ordinal: the mesh of SPMD.
_MESH = "mesh"


cache: LruCache[Program] = LruCache(lambda: metrics.count("DestroyCompileHandles"))


def _key(step: Step, whom: Hashable) -> Hashable:
    return whom, step.graph.key, id(step.products)  # of an object that is there for good; hashing it costs more


def _own(step: Step) -> Hashable:
    return _key(step, _MESH if replicas.is_spmd() else step.device)


def _place(step: Step) -> str:
    """For whom a program is compiled, in words."""
    return "the devices of a mesh (SPMD)" if replicas.is_spmd() else f"xla:{step.device}"


def known(step: Step) -> Program | None:
    """The program of a step's graph, if there is one."""
    found = cache.get(_own(step))
    if found is not None:
        metrics.count("CachedSyncTensors")
    return found


def compiled(step: Step) -> Program:
    """The program of a step's graph, compiled now. Raises LoweringError, XlaError, torch.OutOfMemoryError."""
    metrics.count("UncachedSyncTensors")
    team = _team_of(step)
    if team is not None:
        agreement.check(step.spec, team)
    with observer.compilation(step.graph, step.spec, step.device, _place(step)):
        leaves = compilation.placed(step.graph, team)
        found = compilation.compile_graph(step.spec, step.device, leaves or step.graph.inputs(), team)
    cache.put(_own(step), found, jax_call.bytes_of(step.spec.nodes))
    return found


def _team_of(step: Step) -> replicated.Team | None:
    """Who runs a program together: with SPMD all processes run every one. Nobody where one stands for all."""
    if replicas.represents():
        return None
    if not replicas.is_spmd():
        return replicated.team_of(step.spec)
    processes = tuple(range(replicas.process_count()))
    return replicated.Team(processes, sharded.replicated()) if len(processes) > 1 else None


def _together(step: Step) -> Hashable:
    return _key(step, ("threads", replicas.local_devices()))


def is_together(step: Step) -> bool:
    """Whether the threads of all replicas run the step's graph as one program; to be asked where there are several."""
    if cache.get(_together(step)) is not None:
        return True
    return cache.get(_key(step, step.device)) is None and replicated.team_of(step.spec) is not None


def known_together(step: Step) -> Program | None:
    """The program that the threads of all replicas run as one, if it is known."""
    return cache.get(_together(step))


def compile_together(step: Step, leaves: Sequence[jax.Array]) -> Program:
    """Compiles the program that the threads of all replicas run as one, on their ``leaves`` joined."""
    team = replicated.team_of(step.spec)
    assert team is not None
    with observer.compilation(step.graph, step.spec, step.device, "the threads of all replicas"):
        found = compilation.compile_graph(step.spec, step.device, leaves, team, together=True)
    cache.put(_together(step), found, jax_call.bytes_of(step.spec.nodes))
    return found
