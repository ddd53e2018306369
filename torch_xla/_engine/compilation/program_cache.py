"""In-memory cache of compiled programs, keyed by placement and graph.

key of a program = (placement scope, the recorder's key of the graph, matmul precision)

placement scope      a device ordinal; the devices of all replica threads of this process; or the SPMD mesh
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.compilation import compile_graph, ordinal_constants, placement
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.compilation.placement import Placement
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.rules import jax_call

cache: LruCache[CompiledProgram] = LruCache(lambda: metrics.count("DestroyCompileHandles"))


def lookup_program(run: GraphRun) -> CompiledProgram | None:
    """Return the cached program of a graph; None on a miss."""
    for key in placement.cache_keys(run):
        found = cache.get(key)
        if found is not None:
            metrics.count("CachedSyncTensors")
            return found
    return None


def compile_and_store(run: GraphRun, place: Placement, leaves: Sequence[jax.Array]) -> CompiledProgram:
    """Compile a graph for its placement and cache the program. ``leaves`` are the placed inputs.

    Raises LoweringError, XlaError, torch.OutOfMemoryError, CollectiveMismatchError.
    """
    if place.group is not None:
        place.check_collectives(run.spec)
    ordinal_constants.report_differences(run.spec)
    compile_spec = functools.partial(compile_graph.compile_graph, placement=place, leaves=leaves)
    program = observer.observe_compilation(run, place.name, compile_spec)
    cache.put(place.cache_key, program, jax_call.bytes_of(run.spec.nodes))
    return program
