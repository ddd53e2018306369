"""How a graph becomes a program: a function of jax, lowered, compiled for a device or for several, or loaded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat import pjrt_execution, sharding
from torch_xla._engine.compilation import abstract_program, graph_function, native_executable
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import graph_key
from torch_xla._engine.compilation.placement import MeshPlacement, Placement, ReplicaThreadsPlacement
from torch_xla._engine.cpu_backend import library, malloc_tuning
from torch_xla._engine.device import abstract_device, devices
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.graph import graph_spec, program_info
from torch_xla._engine.graph.program_info import GraphOutline, ProgramSizes
from torch_xla._engine.parallel import spmd

#: Operations of a program from which on its compiler leaves tens of MB free in malloc's hands, or hundreds. Returning
#: them takes little next to compiling.
_LEAVES_MUCH = 40


@dataclass(eq=False)
class CompiledProgram:
    """A compiled graph. Never changes, but for ``launched`` and ``repeated``; may be launched by several threads.

    ``executable`` is the recorder's; ``compiled`` is None on devices without values; ``outline`` is what messages say
    of the graph. ``exchanges`` is what all that take part must agree on, a line each. ``handlers`` are to be told of
    its launches: it calls some of them (``kernel_calls`` times), or Python. ``launched`` and ``repeated``, whether it
    has run once and twice, are for compile_policy.py.
    """

    executable: Any
    compiled: jax.stages.Compiled | None
    outline: GraphOutline
    sizes: ProgramSizes
    placement: Placement
    exchanges: Sequence[str] = ()
    handlers: library.KernelLibrary | None = None
    calls_python: bool = False
    kernel_calls: int = 0
    launched: bool = False
    repeated: bool = False


def compile_graph(spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[jax.Array]) -> CompiledProgram:
    """Compiles a graph for its placement, or loads what another process compiled.

    ``leaves`` are arrays as the program will get them. Raises LoweringError for an op that cannot be built.
    """
    devices.warn_late_dtype_settings()
    outline = program_info.graph_outline(spec)
    if abstract_device.is_enabled():
        return _compile_abstract(spec, outline, placement, leaves)
    device = placement.device
    with (
        recorder.enable_x64(),
        xla_errors.translate_xla_errors(lambda: f"compiling {outline}", placement.ordinal, outline),
        library.kernels_enabled(device.platform) as (handlers, called),
    ):
        arguments = [*_scalar_structs(spec, placement.sharding), *leaves]

        def build(donates: bool, chosen: bool = True) -> tuple[jax.stages.Compiled, bool]:
            jitted = _jit_graph(spec, placement, arguments, donates, chosen)
            try:
                name = graph_key.graph_cache_key(spec, leaves, device, donates) if placement.has_graph_key else None
                lower = functools.partial(jitted.lower, *arguments)
                return persistent_cache.load_or_compile(lower, placement.cacheable_devices, name, called)
            except sharding.indivisible_error():
                if not chosen:
                    raise
                return build(donates, chosen=False)  # no axes of the mesh say how XLA would lay out a result

        compiled, loaded = build(True)
        calls_python = pjrt_execution.has_python_callbacks(compiled)
        if spec.donated and calls_python:
            # The user's Python may raise when the program has begun to write over what it was given.
            compiled, loaded = build(False)
        sizes = program_info.program_sizes(compiled)
        results = placement.result_shardings(compiled) if placement.has_result_shardings else ()
        joined = isinstance(placement, ReplicaThreadsPlacement)
        executable = native_executable.make_executable(compiled, placement.sharding, sizes, results, joined)
    if not loaded and len(spec.nodes) >= _LEAVES_MUCH:
        malloc_tuning.trim_free_memory()
    if device.platform == "cpu":
        malloc_tuning.retain_program_memory(sizes)
    exchanges = placement.collective_signature(spec) if placement.group is not None else ()
    told = handlers if called or calls_python else None
    return CompiledProgram(
        executable, compiled, outline, sizes, placement, exchanges, told, calls_python, called.total()
    )


def _compile_abstract(
    spec: graph_spec.GraphSpec, outline: GraphOutline, placement: Placement, leaves: Sequence[Any]
) -> CompiledProgram:
    if placement.group is not None:
        raise RuntimeError(
            "replicas that exchange values (xmp.spawn, DataParallel) need values; without them, as with --abstract, "
            "several devices are one with SPMD: torch_xla.runtime.use_spmd()"
        )
    spread = isinstance(placement, MeshPlacement)
    results = (
        spec.root_shardings
        if all(spec.root_shardings) or not spread
        else _query_result_shardings(spec, placement, leaves)
    )
    executable, sizes = abstract_program.make_abstract_executable(spec, placement.sharding, results if spread else ())
    return CompiledProgram(executable, None, outline, sizes, placement)


def _query_result_shardings(spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[Any]) -> Sequence[int]:
    """How the results lie that nobody has laid out: as the compiler chooses, which has to be asked."""
    known = abstract_device.query_result_shardings(spec)
    if known is not None:
        ranks = [len(abstract_program.result_spec(spec, root)[0]) for root in spec.roots]
        return [
            sharding_ids.sharding_id(spmd.normalize_sharding(lies), rank)
            for lies, rank in zip(known, ranks, strict=True)
        ]
    with recorder.enable_x64():
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves]
        arguments = [*_scalar_structs(spec, placement.sharding), *structs]
        lowered = _jit_graph(spec, placement, arguments, False).lower(*arguments)
        return placement.result_shardings(lowered.compile({"xla_backend_optimization_level": 0}))  # it never runs


def _scalar_structs(spec: graph_spec.GraphSpec, place: Sharding) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    )


def _jit_graph(
    spec: graph_spec.GraphSpec, placement: Placement, arguments: Sequence[Any], donates: bool, chosen: bool = True
) -> Any:
    """The graph as a function of jax that knows where it runs; ``chosen``: XLA lays out what nobody else has."""
    donated = tuple(position + 2 for position in spec.donated) if donates else ()
    function = graph_function.graph_function(spec)
    return placement.jit(function, spec, arguments, chosen, donate_argnums=donated, keep_unused=True)
