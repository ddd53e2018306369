"""How a graph becomes a program: a function of jax, lowered, compiled for a device or for several, or loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import shardings
from torch_xla._engine.base.compat import launching, sharding
from torch_xla._engine.device import abstract, devices
from torch_xla._engine.diagnostics import errors, metrics, observer
from torch_xla._engine.diagnostics.errors import Outline
from torch_xla._engine.execution import abstractly, compile_cache, edges, graph_names, heap, launch
from torch_xla._engine.graph import program, specs
from torch_xla._engine.handlers import library
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import agreement, replicated, sharded

#: Operations of a program from which on its compiler leaves tens of MB free in malloc's hands, or hundreds. Returning
#: them takes little next to compiling.
_LEAVES_MUCH = 40


@dataclass(eq=False)
class Program:
    """A compiled graph. Never changes, but for the last two; may be launched by several threads.

    ``executable`` is the recorder's; ``compiled`` is None on devices without values; ``outline`` is what messages say
    of the graph. With a ``team`` it has collectives
    (``exchanges``, a line each), and all replicas of the team launch it together. ``handlers`` are to be told of its
    launches: it calls some of them, or Python. ``launched`` and ``repeated``, whether it has run once and twice, are
    for storms.py.
    """

    executable: Any
    compiled: jax.stages.Compiled | None
    outline: Outline
    sizes: observer.Sizes
    team: replicated.Team | None = None
    exchanges: Sequence[str] = ()
    handlers: library.Library | None = None
    calls_python: bool = False
    launched: bool = False
    repeated: bool = False

    def placed(self, graph: Any) -> list[jax.Array] | None:
        """The leaves of a recorder Graph as the program takes them; None: as they lie."""
        return placed(graph, self.team)


def placed(graph: Any, team: replicated.Team | None) -> list[jax.Array] | None:
    """The leaves of a recorder Graph as a program of the team, or of one device, takes them; None: as they lie.

    SPMD                       on all devices
    a team                     as this process's part of an array over the team
    one of several processes   this process's part, where a program of a team left it
    else                       as they lie
    """
    if replicas.is_spmd():
        return sharded.placed(graph.inputs())
    if team is not None:
        return replicated.lift(graph.inputs(), team)
    return None if replicas.process_count() == 1 else [replicated.local(leaf) for leaf in graph.inputs()]


def compile_graph(
    spec: specs.GraphSpec,
    device: int,
    leaves: Sequence[jax.Array],
    team: replicated.Team | None = None,
    together: bool = False,
) -> Program:
    """Compiles a graph for the device, or for all of a team, or loads what another process compiled.

    ``leaves`` are arrays as the program will get them. With ``together`` the team are threads of this process.
    Raises LoweringError for an op that cannot be built.
    """
    devices.warn_of_late_settings()
    outline = errors.outline(spec)
    numbers = _place(device, team)
    if abstract.is_on():
        return _without_values(spec, outline, numbers, team, leaves)
    with (
        recorder.wide_types(),
        errors.explained(lambda: f"compiling {outline}", device, outline),
        library.offered(devices.device(device).platform) as (handlers, called),
    ):
        arguments = [*_numbers(spec, numbers), *leaves]

        def build(donates: bool, chosen: bool = True) -> tuple[jax.stages.Compiled, bool]:
            jitted = _jitted(spec, numbers, team, arguments, donates, chosen)
            try:
                name = _graph_name(spec, device, leaves, team, donates)
                return compile_cache.build(lambda: jitted.lower(*arguments), _kept_for(device, team), name, called)
            except sharding.indivisible():
                if not chosen:
                    raise
                return build(donates, chosen=False)  # no axes of the mesh say how XLA would lay out a result

        compiled, loaded = build(True)
        calls_python = launching.calls_python(compiled)
        if spec.donated and calls_python:
            # The user's Python may raise when the program has begun to write over what it was given.
            compiled, loaded = build(False)
        sizes = observer.sizes(compiled)
        results = _result_shardings(compiled) if replicas.is_spmd() else ()
        executable = launch.executable(compiled, numbers, sizes, results, together)
    if not loaded and len(spec.nodes) >= _LEAVES_MUCH:
        heap.return_free()
    if devices.device(device).platform == "cpu":
        heap.keep(sizes)
    metrics.count("CreateCompileHandles")
    if called:
        metrics.count("CpuKernelCalls", called.total())
    metrics.metric("InputOutputAliasCount").add(len(spec.donated))
    observer.compiled(compiled)
    exchanges = agreement.exchanges(spec) if team is not None else ()
    told = handlers if called or calls_python else None
    return Program(executable, compiled, outline, sizes, team, exchanges, told, calls_python)


def _without_values(
    spec: specs.GraphSpec,
    outline: Outline,
    place: Sharding,
    team: replicated.Team | None,
    leaves: Sequence[Any],
) -> Program:
    if team is not None:
        raise RuntimeError(
            "replicas that exchange values (xmp.spawn, DataParallel) need values; without them, as with --abstract, "
            "several devices are one with SPMD: torch_xla.runtime.use_spmd()"
        )
    spread = replicas.is_spmd()
    results = spec.root_shardings if all(spec.root_shardings) or not spread else _chosen(spec, place, leaves)
    executable, sizes = abstractly.executable(spec, place, results if spread else ())
    metrics.count("CreateCompileHandles")
    return Program(executable, None, outline, sizes)


def _chosen(spec: specs.GraphSpec, place: Sharding, leaves: Sequence[Any]) -> list[int]:
    """How the results lie that nobody has laid out: as the compiler chooses, which has to be asked."""
    known = abstract.chosen(spec)
    if known is not None:
        ranks = [len(abstractly.promise(spec, root)[0]) for root in spec.roots]
        return [shardings.number(sharded.named(lies), rank) for lies, rank in zip(known, ranks, strict=True)]
    with recorder.wide_types():
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves]
        arguments = [*_numbers(spec, place), *structs]
        lowered = _jitted(spec, place, None, arguments, False).lower(*arguments)
        return _result_shardings(lowered.compile({"xla_backend_optimization_level": 0}))  # it never runs


def _numbers(spec: specs.GraphSpec, place: Sharding) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    )


def _place(device: int, team: replicated.Team | None) -> Sharding:
    """Where a program runs, and its numbers lie."""
    if replicas.is_spmd():
        return sharded.replicated()
    return SingleDeviceSharding(devices.device(device)) if team is None else team.sharding


def _kept_for(device: int, team: replicated.Team | None) -> list[jax.Device]:
    if replicas.is_spmd():
        return replicated.kept_for(sharded.mesh_devices())
    return [devices.device(device)] if team is None else replicated.kept_for(team.sharding.mesh.devices.flat)


def _graph_name(
    spec: specs.GraphSpec, device: int, leaves: Sequence[jax.Array], team: replicated.Team | None, donates: bool
) -> str | None:
    """What the graph is called on disk before it is traced; None where more than one device or process decides that."""
    if team is not None or replicas.is_spmd() or replicas.represents() or replicas.process_count() > 1:
        return None
    return graph_names.name(spec, leaves, devices.device(device), donates)


def _jitted(
    spec: specs.GraphSpec,
    place: Sharding,
    team: replicated.Team | None,
    arguments: Sequence[Any],
    donates: bool,
    chosen: bool = True,
) -> Any:
    """The graph as a function of jax that knows where it runs; ``chosen``: XLA lays out what nobody else has."""
    function = program.function(spec)
    represented = replicated.team_of(spec) if replicas.represents() else None
    layout: dict[str, Any] = {}  # one device is that of the arguments; told of it, jax would annotate each value
    if replicas.is_spmd():
        coming, leaving = edges.coming(arguments, place), edges.leaving(spec, arguments[2:], place, chosen)
        function = edges.between(function, spec, leaving)
        layout = {"in_shardings": coming, "out_shardings": leaving}
    elif team is not None:
        function, layout = replicated.over(function, team), {"in_shardings": place, "out_shardings": place}
    elif represented is not None:
        function = replicated.represented(function, represented)
    donated = tuple(position + 2 for position in spec.donated) if donates else ()
    return jax.jit(function, donate_argnums=donated, keep_unused=True, **layout)


def _result_shardings(compiled: jax.stages.Compiled) -> list[int]:
    ranks = [len(info.shape) for info in compiled.out_info]
    return [
        shardings.number(sharded.named(found), rank)
        for found, rank in zip(compiled.output_shardings, ranks, strict=True)
    ]
