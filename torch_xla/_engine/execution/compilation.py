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
from torch_xla._engine.base import shardings
from torch_xla._engine.base.compat import launching, sharding
from torch_xla._engine.device import abstract, devices
from torch_xla._engine.diagnostics import errors
from torch_xla._engine.execution import abstractly, compile_cache, graph_names, heap, launch
from torch_xla._engine.execution.placement import MeshPlacement, Placement, ReplicaThreadsPlacement
from torch_xla._engine.graph import program, program_info, specs
from torch_xla._engine.graph.program_info import GraphOutline, ProgramSizes
from torch_xla._engine.handlers import library
from torch_xla._engine.parallel import sharded

#: Operations of a program from which on its compiler leaves tens of MB free in malloc's hands, or hundreds. Returning
#: them takes little next to compiling.
_LEAVES_MUCH = 40


@dataclass(eq=False)
class Program:
    """A compiled graph. Never changes, but for ``launched`` and ``repeated``; may be launched by several threads.

    ``executable`` is the recorder's; ``compiled`` is None on devices without values; ``outline`` is what messages say
    of the graph. ``exchanges`` is what all that take part must agree on, a line each. ``handlers`` are to be told of
    its launches: it calls some of them (``kernel_calls`` times), or Python. ``launched`` and ``repeated``, whether it
    has run once and twice, are for storms.py.
    """

    executable: Any
    compiled: jax.stages.Compiled | None
    outline: GraphOutline
    sizes: ProgramSizes
    placement: Placement
    exchanges: Sequence[str] = ()
    handlers: library.Library | None = None
    calls_python: bool = False
    kernel_calls: int = 0
    launched: bool = False
    repeated: bool = False


def compile_graph(spec: specs.GraphSpec, placement: Placement, leaves: Sequence[jax.Array]) -> Program:
    """Compiles a graph for its placement, or loads what another process compiled.

    ``leaves`` are arrays as the program will get them. Raises LoweringError for an op that cannot be built.
    """
    devices.warn_of_late_settings()
    outline = program_info.graph_outline(spec)
    if abstract.is_on():
        return _without_values(spec, outline, placement, leaves)
    device = placement.device
    with (
        recorder.wide_types(),
        errors.explained(lambda: f"compiling {outline}", placement.ordinal, outline),
        library.offered(device.platform) as (handlers, called),
    ):
        arguments = [*_numbers(spec, placement.sharding), *leaves]

        def build(donates: bool, chosen: bool = True) -> tuple[jax.stages.Compiled, bool]:
            jitted = _jitted(spec, placement, arguments, donates, chosen)
            try:
                name = graph_names.name(spec, leaves, device, donates) if placement.has_graph_key else None
                lower = functools.partial(jitted.lower, *arguments)
                return compile_cache.build(lower, placement.cacheable_devices, name, called)
            except sharding.indivisible():
                if not chosen:
                    raise
                return build(donates, chosen=False)  # no axes of the mesh say how XLA would lay out a result

        compiled, loaded = build(True)
        calls_python = launching.calls_python(compiled)
        if spec.donated and calls_python:
            # The user's Python may raise when the program has begun to write over what it was given.
            compiled, loaded = build(False)
        sizes = program_info.program_sizes(compiled)
        results = placement.result_shardings(compiled) if placement.has_result_shardings else ()
        joined = isinstance(placement, ReplicaThreadsPlacement)
        executable = launch.executable(compiled, placement.sharding, sizes, results, joined)
    if not loaded and len(spec.nodes) >= _LEAVES_MUCH:
        heap.return_free()
    if device.platform == "cpu":
        heap.keep(sizes)
    exchanges = placement.collective_signature(spec) if placement.group is not None else ()
    told = handlers if called or calls_python else None
    return Program(executable, compiled, outline, sizes, placement, exchanges, told, calls_python, called.total())


def _without_values(
    spec: specs.GraphSpec, outline: GraphOutline, placement: Placement, leaves: Sequence[Any]
) -> Program:
    if placement.group is not None:
        raise RuntimeError(
            "replicas that exchange values (xmp.spawn, DataParallel) need values; without them, as with --abstract, "
            "several devices are one with SPMD: torch_xla.runtime.use_spmd()"
        )
    spread = isinstance(placement, MeshPlacement)
    results = spec.root_shardings if all(spec.root_shardings) or not spread else _chosen(spec, placement, leaves)
    executable, sizes = abstractly.executable(spec, placement.sharding, results if spread else ())
    return Program(executable, None, outline, sizes, placement)


def _chosen(spec: specs.GraphSpec, placement: Placement, leaves: Sequence[Any]) -> Sequence[int]:
    """How the results lie that nobody has laid out: as the compiler chooses, which has to be asked."""
    known = abstract.chosen(spec)
    if known is not None:
        ranks = [len(abstractly.promise(spec, root)[0]) for root in spec.roots]
        return [shardings.number(sharded.named(lies), rank) for lies, rank in zip(known, ranks, strict=True)]
    with recorder.wide_types():
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves]
        arguments = [*_numbers(spec, placement.sharding), *structs]
        lowered = _jitted(spec, placement, arguments, False).lower(*arguments)
        return placement.result_shardings(lowered.compile({"xla_backend_optimization_level": 0}))  # it never runs


def _numbers(spec: specs.GraphSpec, place: Sharding) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    )


def _jitted(
    spec: specs.GraphSpec, placement: Placement, arguments: Sequence[Any], donates: bool, chosen: bool = True
) -> Any:
    """The graph as a function of jax that knows where it runs; ``chosen``: XLA lays out what nobody else has."""
    donated = tuple(position + 2 for position in spec.donated) if donates else ()
    function = program.function(spec)
    return placement.jit(function, spec, arguments, chosen, donate_argnums=donated, keep_unused=True)
