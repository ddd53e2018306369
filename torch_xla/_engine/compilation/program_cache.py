"""Compiled graphs, ready to be launched, and the cache of them, by the keys of their placements.

key of a program = (for whom, the recorder's key of the graph, how exact its products are)

for whom      a device's ordinal; all replicas that threads of this process drive, by their devices; or the mesh
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.compilation import compile_graph, placement
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.compilation.placement import Placement
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.rules import jax_call

cache: LruCache[CompiledProgram] = LruCache(lambda: metrics.count("DestroyCompileHandles"))


def lookup_program(run: GraphRun) -> CompiledProgram | None:
    """The program of a graph, if there is one."""
    for key in placement.cache_keys(run):
        found = cache.get(key)
        if found is not None:
            metrics.count("CachedSyncTensors")
            return found
    return None


def compile_and_store(run: GraphRun, place: Placement, leaves: Sequence[jax.Array]) -> CompiledProgram:
    """The program of a graph, compiled now, for its leaves as it will get them.

    Raises LoweringError, XlaError, torch.OutOfMemoryError, DisagreementError.
    """
    if place.group is not None:
        place.check_collectives(run.spec)
    with observer.compilation_scope(run, place.name) as event:
        found = event.program = compile_graph.compile_graph(run.spec, place, leaves)
    cache.put(place.cache_key, found, jax_call.bytes_of(run.spec.nodes))
    return found
