"""Compiled graphs, ready to be launched, and the cache of them, by the keys of their placements.

key of a program = (for whom, the recorder's key of the graph, how exact its products are)

for whom      a device's ordinal; all replicas that threads of this process drive, by their devices; or the mesh
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.execution import compilation, placement
from torch_xla._engine.execution.compilation import Program
from torch_xla._engine.execution.placement import Placement
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering import jax_call

cache: LruCache[Program] = LruCache(lambda: metrics.count("DestroyCompileHandles"))


def known(run: GraphRun) -> Program | None:
    """The program of a graph, if there is one."""
    for key in placement.cache_keys(run):
        found = cache.get(key)
        if found is not None:
            metrics.count("CachedSyncTensors")
            return found
    return None


def compiled(run: GraphRun, place: Placement, leaves: Sequence[jax.Array]) -> Program:
    """The program of a graph, compiled now, for its leaves as it will get them.

    Raises LoweringError, XlaError, torch.OutOfMemoryError, DisagreementError.
    """
    if place.group is not None:
        place.check_collectives(run.spec)
    with observer.compilation(run, place.name) as event:
        found = event.program = compilation.compile_graph(run.spec, place, leaves)
    cache.put(place.cache_key, found, jax_call.bytes_of(run.spec.nodes))
    return found
