"""Compiled graphs: how one is compiled, for a device or for several, and the cache of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from torch_xla._engine.base import shardings
from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import errors, metrics, observer
from torch_xla._engine.execution import compile_cache
from torch_xla._engine.graph import program
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import replicated, sharded


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph. ``compiled`` is called with (floats, ints, *leaves) and returns the roots.

    With a ``team`` it has collectives: all replicas of the team call it together.
    """

    compiled: jax.stages.Compiled
    spec: program.GraphSpec
    sizes: observer.Sizes
    team: replicated.Team | None = None
    shardings: list[int] | None = None  # of the results; None: each is on one device


#: The programs of this process, by what they were compiled for: a device (or executor._ALL, _MESH), the recorder's key
#: of the graph, how exact its products are.
cache: LruCache[Program] = LruCache(lambda: metrics.count("DestroyCompileHandles"))


def compile_graph(
    spec: program.GraphSpec,
    device: int,
    arguments: Sequence[Any],
    team: replicated.Team | None = None,
) -> Program:
    """Compiles a graph for the device, or for all of a team, or loads what another process compiled.

    Raises LoweringError for an op that cannot be built.
    """
    jitted = _jitted(spec, device, team, arguments)
    places = _kept_for(device, team)
    with errors.explained(lambda: f"compiling {errors.describe_graph(spec)}", device, spec):
        compiled = compile_cache.build(lambda: jitted.lower(*arguments), places)
    metrics.count("CreateCompileHandles")
    metrics.metric("InputOutputAliasCount").add(len(spec.donated))
    observer.compiled(compiled)
    numbers = _result_shardings(compiled) if replicas.is_spmd() else None
    return Program(compiled, spec, observer.sizes(compiled), team, numbers)


def _kept_for(device: int, team: replicated.Team | None) -> list[jax.Device]:
    if replicas.is_spmd():
        return replicated.kept_for(sharded.mesh_devices())
    return [devices.device(device)] if team is None else replicated.kept_for(team.sharding.mesh.devices.flat)


def _jitted(
    spec: program.GraphSpec, device: int, team: replicated.Team | None, arguments: Sequence[jax.Array | np.ndarray]
) -> Any:
    """The graph as a function of jax that knows where it runs."""
    function = program.function(spec)
    place = SingleDeviceSharding(devices.device(device)) if team is None else team.sharding
    coming: Any = place
    leaving: Any = place
    if replicas.is_spmd():
        # Of the numbers, too: a graph that reads nothing else would run on one device.
        coming = tuple(a.sharding if isinstance(a, jax.Array) else sharded.replicated() for a in arguments)
        leaving = [shardings.of(number) for number in spec.root_shardings]
    elif team is not None:
        function = replicated.over(function, team)
    donated = tuple(position + 2 for position in spec.donated)
    return jax.jit(function, in_shardings=coming, out_shardings=leaving, donate_argnums=donated, keep_unused=True)


def _result_shardings(compiled: jax.stages.Compiled) -> list[int]:
    ranks = [len(info.shape) for info in compiled.out_info]
    return [shardings.number(sharding, rank) for sharding, rank in zip(compiled.output_shardings, ranks, strict=True)]
