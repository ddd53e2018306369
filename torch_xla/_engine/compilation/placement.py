"""Decides once per program where a graph runs. All that depends on the decision is in one object, a Placement.

    SPMD   graph has     replica   one replica       placement                launched by
           collectives   threads   simulates all
    yes    -             -         -                 MeshPlacement            every process, in the same order
    no     no            -         -                 SingleDevicePlacement    this replica alone
    no     yes           -         yes (aot)         SingleDevicePlacement    this replica alone (*)
    no     yes           yes       no                ReplicaThreadsPlacement  the last thread, for all replicas
    no     yes           no        no                ReplicaGroupPlacement    every process of the group

(*) It computes the results of a group in which each member has this replica's values (replica_program.simulate_group).

    placement         cached for    inputs                    output shardings        collectives are compared
    single device     the device    unchanged, or local shard unspecified             -
    replica group     the device    global, over the group    replicated              before compiling, by the watchdog
    replica threads   all devices   shards of all threads     replicated              when the threads synchronize
    mesh              the mesh      on all devices            annotated, else XLA's   as a group; every op

A collective in a job of one replica forms a group of one. A graph without collectives has the same program inside and
outside of replica threads, so a lookup in a replica thread tries two keys (``cache_keys``). The decision is needed only
after a cache miss: a cached program has its placement with it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compilation import graph_function, io_shardings
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.lowering import value_checks
from torch_xla._engine.lowering.rules.collectives import COLLECTIVES
from torch_xla._engine.parallel import collective_check, replica_program, spmd
from torch_xla._engine.parallel.replica_program import ReplicaGroup

Function = Callable[..., Any]
InputPlacer = Callable[[Sequence[Any]], list[Any]]

_COLLECTIVES = sorted(COLLECTIVES)
_MESH, _THREADS = "mesh", "threads"  # instead of a device ordinal


def cache_keys(run: GraphRun) -> tuple[Hashable, ...]:
    """Return the cache keys of the graph's program for this thread, in the order in which to try them."""
    # The precision object is never freed, so its id is unique; hashing the object is slower.
    own = (_MESH if replicas.is_spmd() else run.device, run.graph.key, id(run.precision))
    threads = replicas.local_devices()
    return (((_THREADS, threads), *own[1:]), own) if threads else (own,)


def is_alone(run: GraphRun) -> bool:
    """Return ``Placement.is_alone`` of a graph; fast in a job of one replica, as eager mode calls it for every op."""
    return not replicas.is_spmd() and (replicas.world_size() == 1 or Placement.of(run).is_alone)


class Placement(ABC):
    """Where the program of one graph runs. Immutable; stored with the program.

    Args:
      run: a run of the graph.
      scope: the device, devices or mesh for which the program is cached in memory.
      sharding: the devices of the program, and the sharding of its packed scalar operands.
      program_devices: the devices of the program, in the order of its mesh.
      group: the replicas, or with SPMD the processes, that launch the program together; None for a single launcher.
    """

    #: Whether the persistent cache has a key for the graph before it is traced (graph_key.py): only if the program
    #: depends on no other device.
    has_graph_key = False
    #: Whether outputs may be sharded over several devices; ``result_shardings`` returns the shardings.
    has_result_shardings = False
    #: Whether no other device takes part: the graph may be interpreted, or run op by op.
    is_alone = False
    #: Whether the program can check values; with ``is_checked`` it does (graph_function.graph_function).
    can_check = True

    def __init__(
        self,
        run: GraphRun,
        scope: Hashable,
        sharding: Sharding,
        program_devices: Sequence[jax.Device],
        group: ReplicaGroup | None = None,
    ) -> None:
        self.ordinal, self.device = run.device, devices.device(run.device)
        self.cache_key: Hashable = (scope, run.graph.key, id(run.precision))  # one of ``cache_keys``
        self.sharding, self.program_devices, self.group = sharding, list(program_devices), group
        self.name = f"xla:{run.device}"  # in reports
        self.is_checked = self.can_check and value_checks.is_enabled(capabilities.runs_in_process(self.device))

    @staticmethod
    def of(run: GraphRun) -> Placement:
        """Return the placement of a graph. Raises RuntimeError if its collectives use different replica groups."""
        if replicas.is_spmd():
            return MeshPlacement(run)
        group = replica_program.replica_group_of(run.spec) if run.graph.has_any_op(_COLLECTIVES) else None
        if group is None or replicas.is_simulating_replicas():
            return SingleDevicePlacement(run, group)
        if thread_group.current_group() is not None:
            return ReplicaThreadsPlacement(run, (_THREADS, replicas.local_devices()), group)
        return ReplicaGroupPlacement(run, run.device, group)

    def input_placer(self) -> InputPlacer | None:
        """Return the function that places inputs as the program requires; None if it takes them as they are."""
        return None

    def place_inputs(self, graph: Any) -> list[jax.Array] | None:
        """Return the graph's inputs, placed as the program requires; None keeps their current placement."""
        placer = self.input_placer()
        return None if placer is None else placer(graph.inputs())

    def jit(self, spec: GraphSpec, arguments: Sequence[Any], donates: bool, unspecified: bool = True) -> Any:
        """Return the graph as a jitted function of this placement, with its shardings.

        Args:
          spec: the graph.
          arguments: (floats, ints, *leaves), as arrays or ShapeDtypeStructs.
          donates: whether the program may overwrite the inputs that the graph donates.
          unspecified: whether XLA chooses the shardings of unannotated outputs.
        """
        donates = donates and capabilities.donates_buffers(self.device)
        donated = tuple(position + 2 for position in spec.donated) if donates else ()
        function = graph_function.graph_function(spec, self.is_checked)
        return self._jit(function, spec, arguments, unspecified, donate_argnums=donated, keep_unused=True)

    @abstractmethod
    def _jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        """Call jax.jit for the function of a graph; the arguments are those of ``jit``."""

    def result_shardings(self, compiled: jax.stages.Compiled) -> list[int]:
        """Return the sharding id of each output."""
        ranks = [len(info.shape) for info in compiled.out_info]
        return [
            sharding_ids.sharding_id(spmd.normalize_sharding(found), rank)
            for found, rank in zip(compiled.output_shardings, ranks, strict=True)
        ]

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        """Return one line per collective; all members of the group must have equal lines."""
        return collective_check.collective_signature(spec.nodes, every_op=False)

    def check_collectives(self, spec: GraphSpec) -> None:
        """Check the collectives before a group compiles. Raises CollectiveMismatchError if processes differ."""
        assert self.group is not None
        collective_check.check_before_compile(self.collective_signature(spec), self.group)


class SingleDevicePlacement(Placement):
    """One device, which runs the program alone or simulates a group of equal replicas (``simulated``)."""

    def __init__(self, run: GraphRun, simulated: ReplicaGroup | None = None) -> None:
        self._has_peers = replicas.process_count() > 1
        self.has_graph_key = not self._has_peers and not replicas.is_simulating_replicas()
        device = devices.device(run.device)
        super().__init__(run, run.device, SingleDeviceSharding(device), [device])
        self._simulated, self.is_alone = simulated, simulated is None

    def input_placer(self) -> InputPlacer | None:
        # The outputs of a replica group's program are global arrays.
        return replica_program.to_local_arrays if self._has_peers else None

    def _jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        if self._simulated is not None:
            function = replica_program.simulate_group(function, self._simulated)
        # The arguments have the device: with in_shardings jax would annotate each value.
        return jax.jit(function, **options)


class ReplicaGroupPlacement(Placement):
    """The devices of a replica group with one process per replica: the processes launch one program together."""

    group: ReplicaGroup

    def __init__(self, run: GraphRun, scope: Hashable, group: ReplicaGroup) -> None:
        super().__init__(run, scope, group.sharding, list(group.sharding.mesh.devices.flat), group)
        self.is_alone = replicas.world_size() == 1

    def input_placer(self) -> InputPlacer | None:
        return functools.partial(replica_program.to_global_arrays, members=self.group)

    def _jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        function = replica_program.shard_map_over(function, self.group)
        return jax.jit(function, in_shardings=self.sharding, out_shardings=self.sharding, **options)


class ReplicaThreadsPlacement(ReplicaGroupPlacement):
    """The devices of a replica group whose replicas are threads of this process: one joint launch for all."""

    def __init__(self, run: GraphRun, scope: Hashable, group: ReplicaGroup) -> None:
        super().__init__(run, scope, group)
        self.name = "the threads of all replicas"

    def input_placer(self) -> InputPlacer | None:
        return None  # each thread has its own shard

    def join_arguments(self, arguments: Sequence[Sequence[Any]]) -> list[jax.Array]:
        """Return for each argument the global array of all replicas' shards."""
        order = list(self.group.sharding.mesh.devices.flat)
        with recorder.enable_x64():
            joined: list[jax.Array] = []
            for parts in zip(*arguments, strict=True):
                placed = [jax.device_put(part, device) for part, device in zip(parts, order, strict=True)]
                joined.append(jax.make_array_from_single_device_arrays(placed[0].shape, self.group.sharding, placed))
            return joined

    def check_collectives(self, spec: GraphSpec) -> None:
        """Do nothing: the threads compare their collectives when they synchronize (thread_group)."""


class MeshPlacement(Placement):
    """All devices of the job (SPMD); every process launches the same programs in the same order."""

    has_result_shardings = True
    can_check = False

    def __init__(self, run: GraphRun) -> None:
        processes = tuple(range(replicas.process_count()))
        group = ReplicaGroup(processes, spmd.replicated_sharding()) if len(processes) > 1 else None
        super().__init__(run, _MESH, spmd.replicated_sharding(), spmd.mesh_devices(), group)
        self.name = "the devices of a mesh (SPMD)"

    def input_placer(self) -> InputPlacer | None:
        return spmd.place_inputs

    def _jit(
        self, function: Function, spec: GraphSpec, arguments: Sequence[Any], unspecified: bool, **options: Any
    ) -> Any:
        in_shardings = io_shardings.input_shardings(arguments, self.sharding)
        out_shardings = io_shardings.output_shardings(spec, arguments[2:], self.sharding, unspecified)
        function = io_shardings.with_padded_io(function, spec, out_shardings)
        return jax.jit(function, in_shardings=in_shardings, out_shardings=out_shardings, **options)

    def collective_signature(self, spec: GraphSpec) -> Sequence[str]:
        return collective_check.collective_signature(spec.nodes, every_op=True)
