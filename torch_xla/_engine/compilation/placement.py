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
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compilation import io_shardings
from torch_xla._engine.device import devices
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.lowering.rules.collectives import COLLECTIVES
from torch_xla._engine.parallel import collective_check, replica_program, spmd
from torch_xla._engine.parallel.replica_program import ReplicaGroup

Function = Callable[..., Any]

_COLLECTIVES = sorted(COLLECTIVES)
_MESH, _THREADS = "mesh", "threads"  # in place of a device's ordinal


def cache_keys(run: GraphRun) -> tuple[Hashable, ...]:
    """The keys under which this thread finds a program of the graph, in the order in which to try them."""
    # The id is of an object that lives for good; hashing it costs more.
    own = (_MESH if replicas.is_spmd() else run.device, run.graph.key, id(run.precision))
    threads = replicas.local_devices()
    return (((_THREADS, threads), *own[1:]), own) if threads else (own,)


def is_alone(run: GraphRun) -> bool:
    """``Placement.is_alone`` of a graph, by less work in a job of one replica: eager mode asks for every op."""
    return not replicas.is_spmd() and (replicas.world_size() == 1 or Placement.of(run).is_alone)


class Placement(ABC):
    """Where the program of one graph runs. Never changes; kept with the program.

    Args:
      run: a run of the graph.
      scope: for whom its program is cached in memory.
      sharding: where the program runs, and its packed number operands are.
      cacheable_devices: the devices of a program that may be kept on disk; empty for one that may not.
      group: the replicas, or with SPMD the processes, that launch the program together; None: nobody else does.
    """

    #: Whether a graph has a key on disk before it is traced (graph_key.py): where nothing but this device decides
    #: what its program is.
    has_graph_key = False
    #: Whether results may be in parts on several devices: ``result_shardings`` says how.
    has_result_shardings = False
    #: Whether no other device takes part: the graph may be interpreted, or run op by op.
    is_alone = False

    def __init__(
        self,
        run: GraphRun,
        scope: Hashable,
        sharding: Sharding,
        cacheable_devices: Sequence[jax.Device],
        group: ReplicaGroup | None = None,
    ) -> None:
        self.ordinal, self.device = run.device, devices.device(run.device)
        self.cache_key: Hashable = (scope, run.graph.key, id(run.precision))  # one of ``cache_keys``
        self.sharding, self.cacheable_devices, self.group = sharding, cacheable_devices, group
        self.name = f"xla:{run.device}"  # in reports

    @staticmethod
    def of(run: GraphRun) -> Placement:
        """The placement of a graph. Raises RuntimeError where its collectives do not fit together (team_of)."""
        if replicas.is_spmd():
            return MeshPlacement(run)
        group = replica_program.replica_group_of(run.spec) if run.graph.has_any_op(_COLLECTIVES) else None
        if group is None or replicas.is_simulating_replicas():
            return SingleDevicePlacement(run, group)
        if thread_group.current_group() is not None:
            return ReplicaThreadsPlacement(run, (_THREADS, replicas.local_devices()), group)
        return ReplicaGroupPlacement(run, run.device, group)

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        """The leaves of a recorder Graph as the program takes them; None: as they are."""
        return None

    @abstractmethod
    def jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        """jax.jit of the graph's function as the program of this placement, with its shardings.

        Args:
          arguments: (floats, ints, *leaves), or descriptions of them.
          unspecified: whether XLA chooses the shardings of results that nobody has marked.
        """

    def result_shardings(self, compiled: jax.stages.Compiled) -> list[int]:
        """The number of each result's sharding."""
        ranks = [len(info.shape) for info in compiled.out_info]
        return [
            sharding_ids.sharding_id(spmd.normalize_sharding(found), rank)
            for found, rank in zip(compiled.output_shardings, ranks, strict=True)
        ]

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        """What the members of the group must agree on, a line each."""
        return collective_check.collective_signature(spec.nodes, every_op=False)

    def check_collectives(self, spec: GraphSpec) -> None:
        """Before a group compiles. Raises DisagreementError where another process runs different collectives."""
        assert self.group is not None
        collective_check.check_before_compile(self.collective_signature(spec), self.group)


class SingleDevicePlacement(Placement):
    """One device, which needs nobody; or which stands for a ``simulated`` group of equal replicas."""

    def __init__(self, run: GraphRun, simulated: ReplicaGroup | None = None) -> None:
        self._has_peers = replicas.process_count() > 1
        self.has_graph_key = not self._has_peers and not replicas.is_simulating_replicas()
        device = devices.device(run.device)
        super().__init__(run, run.device, SingleDeviceSharding(device), [device])
        self._simulated, self.is_alone = simulated, simulated is None

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        # A program of a group leaves global arrays.
        return [replica_program.to_local_array(leaf) for leaf in graph.inputs()] if self._has_peers else None

    def jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        if self._simulated is not None:
            function = replica_program.simulate_group(function, self._simulated)
        return jax.jit(function, **options)  # the device is the arguments'; told of it, jax would annotate each value


class ReplicaGroupPlacement(Placement):
    """The devices of a group of replicas, each in a process of its own: the processes launch one program together."""

    group: ReplicaGroup

    def __init__(self, run: GraphRun, scope: Hashable, group: ReplicaGroup) -> None:
        super().__init__(
            run, scope, group.sharding, replica_program.cacheable_devices(group.sharding.mesh.devices.flat), group
        )
        self.is_alone = replicas.world_size() == 1

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return replica_program.to_global_arrays(graph.inputs(), self.group)

    def jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        function = replica_program.shard_map_over(function, self.group)
        return jax.jit(function, in_shardings=self.sharding, out_shardings=self.sharding, **options)


class ReplicaThreadsPlacement(ReplicaGroupPlacement):
    """The devices of a group of replicas, all driven by threads of this process: one launch serves them all."""

    def __init__(self, run: GraphRun, scope: Hashable, group: ReplicaGroup) -> None:
        super().__init__(run, scope, group)
        self.name = "the threads of all replicas"

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return None  # each thread has its own part of them

    def join_arguments(self, arguments: Sequence[Sequence[Any]]) -> list[jax.Array]:
        """An array over the group's devices of what each replica has for the same argument."""
        order = list(self.group.sharding.mesh.devices.flat)
        with recorder.enable_x64():
            joined: list[jax.Array] = []
            for parts in zip(*arguments, strict=True):
                placed = [jax.device_put(part, device) for part, device in zip(parts, order, strict=True)]
                joined.append(jax.make_array_from_single_device_arrays(placed[0].shape, self.group.sharding, placed))
            return joined

    def check_collectives(self, spec: GraphSpec) -> None:
        """The threads have compared them when they met (thread_group)."""


class MeshPlacement(Placement):
    """All devices of the job (SPMD), which every process drives in step."""

    has_result_shardings = True

    def __init__(self, run: GraphRun) -> None:
        processes = tuple(range(replicas.process_count()))
        group = ReplicaGroup(processes, spmd.replicated_sharding()) if len(processes) > 1 else None
        super().__init__(
            run, _MESH, spmd.replicated_sharding(), replica_program.cacheable_devices(spmd.mesh_devices()), group
        )
        self.name = "the devices of a mesh (SPMD)"

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        return spmd.place_inputs(graph.inputs())

    def jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        coming = io_shardings.input_shardings(arguments, self.sharding)
        leaving = io_shardings.output_shardings(spec, arguments[2:], self.sharding, unspecified)
        function = io_shardings.with_padded_io(function, spec, leaving)
        return jax.jit(function, in_shardings=coming, out_shardings=leaving, **options)

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        return collective_check.collective_signature(spec.nodes, every_op=True)
