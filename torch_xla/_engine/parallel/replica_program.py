"""Build programs with collectives: one program under jax.shard_map over a mesh of one device per replica.

**Device order.** The mesh has one axis, ``replica``, ordered by global ordinal: the first device of each process, or
the devices of the replica threads of one process. ``jax.devices()`` may order devices differently (on a TPU by
coordinates). Every process must build the same mesh, because XLA compiles the device order into the executable, and
``lax.axis_index`` and the concatenation order of an all-gather are positions on this axis. A program for the replicas
2, 5 and 7 has a mesh of three devices; the lowering rules map the ordinals of a group to positions on it.

    ordinal          2            5            7        groups=[[5, 2, 7]] of an all-gather
    position         0            1            2        axis_index_groups=[[1, 0, 2]]
    device         xla:0        xla:0        xla:0      of processes 2, 5, 7
    shard          x2 [8, 4]    x5 [8, 4]    x7 [8, 4]  global array [8, 4], PartitionSpec(), check_vma=False
    all_gather(0)  [x5, x2, x7] on each of them: [24, 4]

**Global arrays.** To jax, arguments and results are replicated arrays over the mesh: the global shape is the shape of
each replica's tensor, and no dimension is split. The values of the shards differ; ``check_vma=False`` turns off jax's
check of that. ``to_global_arrays`` assembles such an array from this process's shard, ``to_local_array`` returns the
shard. Results of one-device processes remain global arrays, and the next step takes them without conversion.

**Padding.** A collective sees no padded rows here: all replicas have tensors of the same shape. Only SPMD arrays
(``spmd.py``) are padded, if a dimension does not divide; a program crops them to the tensor's shape before its first
operation (compilation/io_shardings.py), so the collectives that XLA inserts reduce no padding either.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_xla._engine.device import devices
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.job import replicas
from torch_xla._engine.lowering.rules.collectives import AXIS, split_groups


@dataclass(frozen=True)
class ReplicaGroup:
    """The replicas that run one program: their global ordinals, ascending, and the sharding over their devices."""

    ordinals: tuple[int, ...]
    sharding: NamedSharding


def replica_group_of(spec: graph_spec.GraphSpec) -> ReplicaGroup | None:
    """Return the replica group of a graph's collectives, None for a graph without collectives.

    Raises:
      RuntimeError: the collectives have different replica groups, or this replica is not in the group.
    """
    found = {_participants(node): node.op for node in spec.nodes if graph_spec.is_collective(node)}
    if not found:
        return None
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise RuntimeError(
            f"one graph contains {first} among replicas {list(one)} and {second} among replicas {list(other)}; "
            "use groups of all replicas, or call torch_xla.sync() between the collectives"
        )
    ordinals = next(iter(found))
    if replicas.global_ordinal() not in ordinals:
        raise RuntimeError(
            f"{found[ordinals]}: replica {replicas.global_ordinal()} is in no group of the replicas {list(ordinals)}"
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
    """Return the group of these replicas. Raises RuntimeError for an ordinal that is out of range."""
    replica_devices = devices.replica_devices()
    count = len(replica_devices)
    if ordinals[-1] >= count:
        raise RuntimeError(f"collective among replicas {list(ordinals)}: ordinals must be in [0, {count})")
    return ReplicaGroup(ordinals, _replicated_sharding(tuple(replica_devices[ordinal] for ordinal in ordinals)))


def shard_map_over(function: Callable[..., Any], members: ReplicaGroup) -> Callable[..., Any]:
    """Return the function of one replica as a program over the mesh of its replica group."""
    replicated = PartitionSpec()

    def map_nonempty(*arguments: jax.Array) -> list[jax.Array]:
        # XLA rejects the call of the mapped function if it uses only empty arguments: they are made in the function.
        def on_replica(*nonempty: jax.Array) -> list[jax.Array]:
            remaining = iter(nonempty)
            results: list[jax.Array] = function(
                *(next(remaining) if x.size else jnp.zeros(x.shape, x.dtype) for x in arguments)
            )
            return results

        mapped: Any = jax.shard_map(
            on_replica, mesh=members.sharding.mesh, in_specs=replicated, out_specs=replicated, check_vma=False
        )
        results: list[jax.Array] = mapped(*(x for x in arguments if x.size))
        return results

    return map_nonempty


def simulate_group(function: Callable[..., Any], members: ReplicaGroup) -> Callable[..., Any]:
    """Return the function of one replica, run on one device as if all replicas had its values (see job/replicas.py)."""

    def simulated(*arguments: jax.Array) -> list[jax.Array]:
        in_axes = (0, *(None for _ in arguments))
        all_replicas: Any = jax.vmap(lambda _, *given: function(*given), in_axes, axis_name=AXIS)
        return [result[0] for result in all_replicas(np.arange(len(members.ordinals)), *arguments)]

    return simulated


class _GlobalArrayCache:
    """Cache the global arrays of local arrays that do not change between steps (frozen weights), while these live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[jax.Array], ReplicaGroup, jax.Array]] = {}

    def get(self, array: jax.Array, members: ReplicaGroup) -> jax.Array:
        known = self._known.get(id(array))
        if known is not None and known[0]() is array and known[1] == members and not known[2].is_deleted():
            return known[2]
        global_array = _assemble([array], members)
        number = id(array)
        self._known[number] = (weakref.ref(array, lambda dead: self._forget(number, dead)), members, global_array)
        return global_array

    def _forget(self, number: int, dead: object) -> None:
        known = self._known.get(number)
        if known is not None and known[0] is dead:  # otherwise another array has this id now
            del self._known[number]


_global_array_cache = _GlobalArrayCache()


def _assemble(parts: Sequence[jax.Array], members: ReplicaGroup) -> jax.Array:
    return jax.make_array_from_single_device_arrays(parts[0].shape, members.sharding, list(parts))


def to_global_arrays(arguments: Iterable[Any], members: ReplicaGroup) -> list[jax.Array]:
    """Return the arguments of this process's replica as global arrays over the replica group."""
    global_arrays = []
    for value in arguments:
        if isinstance(value, np.ndarray):
            global_arrays.append(_assemble([jax.device_put(value, devices.device(0))], members))
        elif value.sharding == members.sharding:
            global_arrays.append(value)
        else:
            global_arrays.append(_global_array_cache.get(to_local_array(value), members))
    return global_arrays


def to_local_array(value: jax.Array) -> jax.Array:
    """Return this process's shard of a global array; a local array is returned unchanged."""
    return value if value.is_fully_addressable else value.addressable_data(0)


def to_local_arrays(values: Iterable[Any]) -> list[jax.Array]:
    """Return this process's shard of each global array; local arrays are returned unchanged."""
    return [to_local_array(value) for value in values]
