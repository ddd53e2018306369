"""Programs with collectives: one program, run by several replicas, each on values of its own.

Such a program runs under jax.shard_map over a mesh of the participants' devices. To jax its arguments and results are
replicated arrays over the whole mesh; that every replica puts other values into its part is what makes collectives
useful, and is not checked (check_vma=False). ``lift`` makes such an array of this process's part; ``local`` takes the
part out again. Where each process has one device, results stay lifted: the next step takes them as they are.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_xla._engine.device import devices
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.job import replicas
from torch_xla._engine.lowering.rules.collectives import AXIS, split_groups


@dataclass(frozen=True)
class ReplicaGroup:
    """Who runs a program together: global ordinals, in order, and the sharding that spans their devices."""

    ordinals: tuple[int, ...]
    sharding: NamedSharding


def replica_group_of(spec: graph_spec.GraphSpec) -> ReplicaGroup | None:
    """The team that a graph needs, None for a graph without collectives.

    Raises RuntimeError where its collectives need different ones, or this replica takes no part in them.
    """
    found = {_participants(node): node.op for node in spec.nodes if graph_spec.is_collective(node)}
    if not found:
        return None
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise RuntimeError(
            f"{first} among replicas {list(one)} and {second} among replicas {list(other)} are in one graph; groups "
            "must name every replica, or call torch_xla.sync() between them"
        )
    ordinals = next(iter(found))
    if replicas.global_ordinal() not in ordinals:
        raise RuntimeError(
            f"{found[ordinals]}: replica {replicas.global_ordinal()} is in none of the groups of {list(ordinals)}"
        )
    return replica_group(ordinals)


def _participants(node: graph_spec.NodeSpec) -> tuple[int, ...]:
    groups = split_groups(node.args[-1][1])
    named = tuple(sorted(ordinal for group in groups for ordinal in group))
    return named or tuple(range(replicas.world_size()))


@functools.cache
def _replicated_sharding(mesh_devices: tuple[jax.Device, ...]) -> NamedSharding:
    return NamedSharding(Mesh(np.array(mesh_devices), (AXIS,)), PartitionSpec())


def replica_group(ordinals: tuple[int, ...]) -> ReplicaGroup:
    """The team of these replicas. Raises RuntimeError for an ordinal that does not exist."""
    everyone = devices.replica_devices()
    if ordinals[-1] >= len(everyone):
        raise RuntimeError(f"collective among replicas {list(ordinals)}: the job has {len(everyone)}, counted from 0")
    return ReplicaGroup(ordinals, _replicated_sharding(tuple(everyone[ordinal] for ordinal in ordinals)))


def cacheable_devices(together: Iterable[jax.Device]) -> list[jax.Device]:
    """Devices that run programs together, where these programs may be kept on disk, else none.

    On the CPU a process compiles for itself. Elsewhere XLA may compile together with the other processes (it shares the
    tuning of kernels), so all would have to find a program, or none; which of them compile it, nobody knows beforehand.
    """
    places = list(together)
    return places if replicas.process_count() == 1 or places[0].platform == "cpu" else []


def shard_map_over(function: Callable[..., Any], members: ReplicaGroup) -> Callable[..., Any]:
    """The function of one replica as the program of all."""
    everywhere = PartitionSpec()
    return jax.shard_map(
        function, mesh=members.sharding.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )


def simulate_group(function: Callable[..., Any], members: ReplicaGroup) -> Callable[..., Any]:
    """The function of one replica as it computes where all others have what this one has; see replicas.represent."""

    def alone(*arguments: jax.Array) -> list[jax.Array]:
        mine = (0, *(None for _ in arguments))
        everyone: Any = jax.vmap(lambda _, *given: function(*given), mine, axis_name=AXIS)
        return [result[0] for result in everyone(np.arange(len(members.ordinals)), *arguments)]

    return alone


class _GlobalArrayCache:
    """Lifted forms of arrays that stay what they are from step to step (frozen weights), while the array lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[jax.Array], ReplicaGroup, jax.Array]] = {}

    def get(self, array: jax.Array, members: ReplicaGroup) -> jax.Array:
        known = self._known.get(id(array))
        if known is not None and known[0]() is array and known[1] == members and not known[2].is_deleted():
            return known[2]
        lifted = _assemble([array], members)
        number = id(array)
        self._known[number] = (weakref.ref(array, lambda dead: self._forget(number, dead)), members, lifted)
        return lifted

    def _forget(self, number: int, dead: object) -> None:
        known = self._known.get(number)
        if known is not None and known[0] is dead:  # else the number is another array's by now
            del self._known[number]


_lifted = _GlobalArrayCache()


def _assemble(parts: Sequence[jax.Array], members: ReplicaGroup) -> jax.Array:
    return jax.make_array_from_single_device_arrays(parts[0].shape, members.sharding, list(parts))


def to_global_arrays(arguments: Iterable[Any], members: ReplicaGroup) -> list[jax.Array]:
    """The arguments of the one replica of this process as arrays over the team."""
    lifted = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            lifted.append(_assemble([jax.device_put(value, devices.device(0))], members))
        elif value.sharding == members.sharding:
            lifted.append(value)
        else:
            lifted.append(_lifted.get(to_local_array(value), members))
    return lifted


def to_local_array(value: jax.Array) -> jax.Array:
    """This process's part of an array that may be lifted."""
    return value if value.is_fully_addressable else value.addressable_data(0)
