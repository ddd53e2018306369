"""Where a graph runs, decided once per program: everything that depends on it is asked of one object, a Placement.

    SPMD   graph has     threads are    one replica     placement                launched by
           collectives   the replicas   stands for all
    yes    -             -              -               MeshPlacement            every process, in step
    no     no            -              -               SingleDevicePlacement    this replica alone
    no     yes           -              yes (aot)       SingleDevicePlacement    this replica alone (*)
    no     yes           yes            no              ReplicaThreadsPlacement  the last thread, for all of them
    no     yes           no             no              ReplicaGroupPlacement    every process of the group

(*) It computes the results of a group whose members all have its values (replicated.represented).

    placement         cached for    inputs                    shardings of results    collectives are compared
    single device     the device    unchanged, or local part  none given              -
    replica group     the device    global, over the group    replicated              before compiling, by the watchdog
    replica threads   all devices   parts of all threads      replicated              when the threads meet
    mesh              the mesh      on all devices            as marked, else XLA's   as a group; every op

A collective in a job of one replica makes a group of one. A graph without collectives is the same program inside and
outside of replica threads, so a lookup there tries two keys (``cache_keys``). Only a lookup that fails needs the
decision: a program that was found has its placement with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import shardings
from torch_xla._engine.device import devices
from torch_xla._engine.execution import edges
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.specs import GraphSpec
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.lowering.collectives import COLLECTIVES
from torch_xla._engine.parallel import agreement, replicated, sharded
from torch_xla._engine.parallel.replicated import Team

Function = Callable[..., Any]

_COLLECTIVES = sorted(COLLECTIVES)
_MESH = "mesh"  # in place of a device's ordinal


def cache_keys(run: GraphRun) -> tuple[Hashable, ...]:
    """The keys under which this thread finds a program of the graph, in the order in which to try them."""
    # The id is of an object that lives for good; hashing it costs more.
    scope, key, precision = _MESH if replicas.is_spmd() else run.device, run.graph.key, id(run.precision)
    if thread_group.current() is None:
        return ((scope, key, precision),)
    return (_threads_scope(), key, precision), (scope, key, precision)


def _key(scope: Hashable, run: GraphRun) -> Hashable:
    return scope, run.graph.key, id(run.precision)


def _threads_scope() -> Hashable:
    return "threads", replicas.local_devices()


class Placement(ABC):
    """Where a program runs. Never changes; kept with the program.

    ``device`` is the ordinal of the xla device. ``group`` are the replicas, or with SPMD the processes, that launch
    every program of the placement together; None: nobody else takes part. ``has_graph_key``: whether a graph has a key
    on disk before it is traced (graph_names.py), as nothing but this device decides what its program is.
    """

    has_graph_key = False

    def __init__(self, device: int, group: Team | None = None) -> None:
        self.device, self.group = device, group

    @staticmethod
    def of(run: GraphRun) -> Placement:
        """The placement of a graph. Raises RuntimeError where its collectives do not fit together (team_of)."""
        if replicas.is_spmd():
            return MeshPlacement(run.device)
        group = replicated.team_of(run.spec) if run.graph.has_any_op(_COLLECTIVES) else None
        if group is None or replicas.represents():
            return SingleDevicePlacement(run.device, group)
        if thread_group.current() is not None:
            return ReplicaThreadsPlacement(run.device, group)
        return ReplicaGroupPlacement(run.device, group)

    @property
    def is_alone(self) -> bool:
        """Whether no other device takes part: the graph may be interpreted, or run op by op."""
        return False

    @abstractmethod
    def describe(self) -> str:
        """The placement, as reports name it."""

    @abstractmethod
    def cache_key(self, run: GraphRun) -> Hashable:
        """The key under which the program of the graph is cached in memory; one of ``cache_keys``."""

    @abstractmethod
    def cacheable_devices(self) -> list[jax.Device]:
        """The devices of a program that may be kept on disk; empty for one that may not."""

    @abstractmethod
    def scalar_sharding(self) -> Sharding:
        """Where the program runs, and its packed number operands are."""

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        """The leaves of a recorder Graph as the program takes them; None: as they are."""
        return None

    def in_shardings(self, arguments: Sequence[Any]) -> Any:
        """The shardings of (floats, ints, *leaves), for jax.jit."""
        return self.scalar_sharding()

    def out_shardings(self, spec: GraphSpec, leaves: Sequence[Any], unspecified: bool) -> Any:
        """Those of the results; with ``unspecified`` XLA may choose. None: jit is given none, nor ``in_shardings``."""
        return self.scalar_sharding()

    def program_function(self, function: Function, spec: GraphSpec, out_shardings: Any) -> Function:
        """The function of the graph's tensors as one of the program's arrays."""
        return function

    def result_shardings(self, compiled: jax.stages.Compiled) -> Sequence[int]:
        """The number of each result's sharding; empty where results are on one device, or whole on each."""
        return ()

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        """What all that take part must agree on, a line each."""
        return agreement.exchanges(spec.nodes, every_op=False)

    def check_collectives(self, spec: GraphSpec) -> None:
        """Before the graph is compiled. Raises DisagreementError where another process runs different collectives."""
        if self.group is not None:
            agreement.check(self.collective_signature(spec), self.group)


class SingleDevicePlacement(Placement):
    """One device, which needs nobody; or which stands for a ``simulated`` group of equal replicas."""

    def __init__(self, device: int, simulated: Team | None = None) -> None:
        super().__init__(device)
        self._simulated = simulated
        self._has_peers = replicas.process_count() > 1
        self._device = devices.device(device)
        self.has_graph_key = not self._has_peers and not replicas.represents()

    @property
    def is_alone(self) -> bool:
        return self._simulated is None

    def describe(self) -> str:
        return f"xla:{self.device}"

    def cache_key(self, run: GraphRun) -> Hashable:
        return _key(self.device, run)

    def cacheable_devices(self) -> list[jax.Device]:
        return [self._device]

    def scalar_sharding(self) -> Sharding:
        return SingleDeviceSharding(self._device)

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        # A program of a group leaves global arrays.
        return [replicated.local(leaf) for leaf in graph.inputs()] if self._has_peers else None

    def out_shardings(self, spec: GraphSpec, leaves: Sequence[Any], unspecified: bool) -> Any:
        return None  # the device is that of the arguments; told of it, jax would annotate each value

    def program_function(self, function: Function, spec: GraphSpec, out_shardings: Any) -> Function:
        return function if self._simulated is None else replicated.represented(function, self._simulated)

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        return ()


class ReplicaGroupPlacement(Placement):
    """The devices of a group of replicas, each in a process of its own: the processes launch one program together."""

    group: Team

    def __init__(self, device: int, group: Team) -> None:
        super().__init__(device, group)

    @property
    def is_alone(self) -> bool:
        return replicas.world_size() == 1

    def describe(self) -> str:
        return f"xla:{self.device}"

    def cache_key(self, run: GraphRun) -> Hashable:
        return _key(self.device, run)

    def cacheable_devices(self) -> list[jax.Device]:
        return replicated.kept_for(self.group.sharding.mesh.devices.flat)

    def scalar_sharding(self) -> Sharding:
        return self.group.sharding

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return replicated.lift(graph.inputs(), self.group)

    def program_function(self, function: Function, spec: GraphSpec, out_shardings: Any) -> Function:
        return replicated.over(function, self.group)


class ReplicaThreadsPlacement(ReplicaGroupPlacement):
    """The devices of a group of replicas, all driven by threads of this process: one launch serves them all."""

    def describe(self) -> str:
        return "the threads of all replicas"

    def cache_key(self, run: GraphRun) -> Hashable:
        return _key(_threads_scope(), run)

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return None  # each thread has its own part of them

    def join_arguments(self, arguments: Sequence[Sequence[Any]]) -> list[jax.Array]:
        """An array over the group's devices of what each replica has for the same argument."""
        order = list(self.group.sharding.mesh.devices.flat)
        with recorder.wide_types():
            joined: list[jax.Array] = []
            for parts in zip(*arguments, strict=True):
                placed = [jax.device_put(part, device) for part, device in zip(parts, order, strict=True)]
                joined.append(jax.make_array_from_single_device_arrays(placed[0].shape, self.group.sharding, placed))
            return joined

    def check_collectives(self, spec: GraphSpec) -> None:
        """The threads have compared them when they met (thread_group)."""


class MeshPlacement(Placement):
    """All devices of the job (SPMD), which every process drives in step."""

    def __init__(self, device: int) -> None:
        processes = tuple(range(replicas.process_count()))
        super().__init__(device, Team(processes, sharded.replicated()) if len(processes) > 1 else None)

    def describe(self) -> str:
        return "the devices of a mesh (SPMD)"

    def cache_key(self, run: GraphRun) -> Hashable:
        return _key(_MESH, run)

    def cacheable_devices(self) -> list[jax.Device]:
        return replicated.kept_for(sharded.mesh_devices())

    def scalar_sharding(self) -> Sharding:
        return sharded.replicated()

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return sharded.placed(graph.inputs())

    def in_shardings(self, arguments: Sequence[Any]) -> Any:
        return edges.coming(arguments, self.scalar_sharding())

    def out_shardings(self, spec: GraphSpec, leaves: Sequence[Any], unspecified: bool) -> Any:
        return edges.leaving(spec, leaves, self.scalar_sharding(), unspecified)

    def program_function(self, function: Function, spec: GraphSpec, out_shardings: Any) -> Function:
        return edges.between(function, spec, out_shardings)

    def result_shardings(self, compiled: jax.stages.Compiled) -> Sequence[int]:
        ranks = [len(info.shape) for info in compiled.out_info]
        return [
            shardings.number(sharded.named(found), rank)
            for found, rank in zip(compiled.output_shardings, ranks, strict=True)
        ]

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        return agreement.exchanges(spec.nodes, every_op=True) if self.group is not None else ()
