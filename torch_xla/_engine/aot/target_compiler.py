"""Compiles a recorded graph for the devices of a target, with the target's storage dtypes, precision and shardings.

GraphSpec ──lower_for_target──► TargetProgram (StableHLO for the target's platform)
          ──compile_for_target──► CompiledTargetProgram (a jax.stages.Compiled that cannot be run here)
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jax_core
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.aot import retarget
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.base import dtypes, sharding_ids
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat.sharding import device_order, reordered_sharding, to_named_sharding
from torch_xla._engine.compilation import graph_function, io_shardings
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.graph import program_info
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.parallel import replica_program


class TargetError(RuntimeError):
    """Raised when a program cannot be compiled for a target. ``file`` has its StableHLO, if lowering succeeded."""

    def __init__(self, message: str, file: Path | None = None) -> None:
        super().__init__(message)
        self.file = file


class DoesNotFitError(TargetError):
    """Raised when a program does not fit into the memory of its target.

    Attributes:
      required_bytes: the memory that the program requires, as the compiler reports it; 0 if it reports none.
      capacity_bytes: the memory of one device, as the compiler reports it; 0 if it reports none.
      excludes_arguments: whether ``required_bytes`` excludes the program's arguments.
    """

    def __init__(
        self,
        message: str,
        file: Path | None,
        required_bytes: int,
        capacity_bytes: int,
        excludes_arguments: bool = False,
    ) -> None:
        super().__init__(message, file)
        self.required_bytes, self.capacity_bytes = required_bytes, capacity_bytes
        self.excludes_arguments = excludes_arguments


#: "memory required for HLO temporaries (64.00G) exceeds available HBM (15.75G)", "Used 26.06G of 15.75G hbm"
_SIZES = re.compile(r"(?:temporaries \(|Used )([\d.]+)([KMGT]).*?([\d.]+)([KMGT])", re.DOTALL)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class ProgramPlacement:
    """The placement of a program on devices. The default is a single device.

    Args:
      replicated: in SPMD mode, the sharding of scalars: replicated over all devices of this process.
      input_shardings: in SPMD mode, the sharding of each input.
      result_sharding_ids: in SPMD mode, the sharding id of each result; 0 lets the compiler choose.
      replica_group: the replicas that run the program, one device each.
    """

    replicated: Sharding | None = None
    input_shardings: tuple[Sharding, ...] = ()
    result_sharding_ids: tuple[int, ...] = ()
    replica_group: replica_program.ReplicaGroup | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TargetProgram:
    """A program lowered to StableHLO for a target."""

    target: Target
    stage: jax.stages.Lowered
    chips: int  # number of chips that run the program

    def text(self) -> str:
        """Return the StableHLO."""
        return self.stage.as_text()


def lower_for_target(spec: GraphSpec, target: Target, layout: ProgramPlacement | None = None) -> TargetProgram:
    """Lower a graph for a target.

    Raises:
      LoweringError: an op cannot be lowered for the target.
      ValueError: the target has fewer devices than the program's mesh.
    """
    layout = layout or ProgramPlacement()
    spec = dataclasses.replace(spec, precision=matmul_precision.precision_for_platform(target.platform))
    with (
        recorder.enable_x64(),
        dtypes.override_storage_dtypes(_storage_dtypes(target)),
        sharding_ids.remap_shardings(_RetargetSharding(target)),
    ):
        stage, count = _lower(spec, target, layout)
    return TargetProgram(target, stage, count)


def _storage_dtypes(target: Target) -> dict[Any, Any]:
    return dtypes.storage_dtype_map(
        target.platform,
        use_bf16=settings.XLA_USE_BF16 or settings.XLA_USE_F16,
        downcast_bf16=settings.XLA_DOWNCAST_BF16 or settings.XLA_DOWNCAST_FP16,
        use_32bit_long=settings.XLA_USE_32BIT_LONG,
    )


def _lower(spec: GraphSpec, target: Target, layout: ProgramPlacement) -> tuple[jax.stages.Lowered, int]:
    moved = _RetargetSharding(target)
    function: Callable[..., Any] = graph_function.graph_function(spec)
    # As in compilation/placement.py, so that a program has the same file name in the persistent cache: a single device
    # is given by the arguments.
    single_device = layout.replica_group is None and layout.replicated is None
    place = SingleDeviceSharding(target.devices[0]) if single_device else None
    numbers: list[Any] = [
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    ]
    leaves = [
        jax.ShapeDtypeStruct(shape, dtypes.storage_numpy_dtype(dtype), sharding=place) for shape, dtype in spec.leaves
    ]
    options: dict[str, Any] = {"donate_argnums": tuple(position + 2 for position in spec.donated)}
    count = 1
    if layout.replica_group is not None:
        over = moved(layout.replica_group.sharding)
        group = replica_program.ReplicaGroup(layout.replica_group.ordinals, over)
        function = replica_program.shard_map_over(function, group)
        options |= {"in_shardings": over, "out_shardings": over}
        count = len(over.device_set)
    elif layout.replicated is not None:
        everywhere = moved(layout.replicated)
        leaves = [
            jax.ShapeDtypeStruct(sharding_ids.padded_shape(leaf.shape, sharding), leaf.dtype, sharding=sharding)
            for leaf, sharding in zip(leaves, map(moved, layout.input_shardings), strict=True)
        ]
        given = dataclasses.replace(spec, root_shardings=list(layout.result_sharding_ids))
        out_shardings = io_shardings.output_shardings(given, leaves, everywhere)
        function = io_shardings.with_padded_io(function, given, out_shardings)
        options |= {
            "in_shardings": io_shardings.input_shardings([*numbers, *leaves], everywhere),
            "out_shardings": out_shardings,
        }
        count = len(everywhere.device_set)
    traced = jax.jit(function, keep_unused=True, **options).trace(*numbers, *leaves)
    closed = retarget.retarget_jaxpr(traced, moved)
    if closed is not None:
        graph = _rename_module(function, jax_core.jaxpr_as_fun(closed))
        traced = jax.jit(graph, keep_unused=True, **options).trace(*numbers, *leaves)
    return traced.lower(), count


def _rename_module(function: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    def graph(*arrays: Any) -> Any:
        return other(*arrays)

    graph.__name__ = graph.__qualname__ = getattr(function, "__name__", "graph")
    return graph


class _RetargetSharding:
    """Maps a sharding over devices of this process to the same sharding over the devices of a target, in order."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, sharding: Sharding) -> NamedSharding:
        if not isinstance(sharding, NamedSharding):
            raise TypeError(f"target {self._target.name}: cannot retarget the sharding {sharding}, which has no mesh")
        mesh = sharding.mesh
        if set(mesh.devices.flat) <= set(self._target.devices):
            return sharding
        if mesh.size > len(self._target.devices):
            raise ValueError(
                f"target {self._target.name} has {len(self._target.devices)} devices, the program's mesh "
                f"{dict(mesh.shape)} needs {mesh.size}"
            )
        return _on_devices(self._target.devices[: mesh.size], sharding)


def _on_devices(devices: Sequence[jax.Device], sharding: NamedSharding) -> NamedSharding:
    """Return the same sharding over other devices."""
    mesh = Mesh(np.array(devices).reshape(sharding.mesh.devices.shape), sharding.mesh.axis_names)
    return reordered_sharding(mesh, sharding.spec, device_order(sharding))


def query_result_shardings(compiled: CompiledTargetProgram, devices: Sequence[jax.Device]) -> list[Sharding]:
    """Return the shardings of a program's results, mapped to other devices, of the same number."""
    shardings: Sequence[Sharding] = compiled.stage.output_shardings  # a list, in the order of the results
    return [
        _on_devices(devices, each) if isinstance(each, NamedSharding) else to_named_sharding(each, tuple(devices))
        for each in shardings
    ]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledTargetProgram:
    """A program compiled for a target, and the compile time in seconds."""

    lowered: TargetProgram
    stage: jax.stages.Compiled
    seconds: float


def compile_for_target(
    lowered: TargetProgram, spec: GraphSpec | None, where: str = "", begun: Callable[[Path], None] = lambda file: None
) -> CompiledTargetProgram:
    """Compile a program for its target.

    Args:
      spec: the graph, for messages; None for a program without one.
      where: identifies the program in messages, such as the user's line.
      begun: called with the path of the StableHLO before compilation, as a crash of the compiler leaves no message.

    Raises:
      DoesNotFitError: the program does not fit into the memory of the target.
      TargetError: the compiler rejects the program for another reason.
    """
    file = dump_stablehlo(lowered)
    begun(file)
    start = time.perf_counter()
    try:
        stage = lowered.stage.compile()
    except jax.errors.JaxRuntimeError as error:
        raise _translate_compile_error(error, lowered, spec, where, file) from error
    seconds = time.perf_counter() - start
    shutil.rmtree(file.parent, ignore_errors=True)
    return CompiledTargetProgram(lowered, stage, seconds)


def _translate_compile_error(
    error: Exception, lowered: TargetProgram, spec: GraphSpec | None, where: str, file: Path
) -> TargetError:
    what = f"{'a program' if spec is None else program_info.graph_outline(spec)}{f' at {where}' if where else ''}"
    text = f"target {lowered.target.name}: compiling {what}: {error}\n  Its StableHLO is in {file}."
    if "RESOURCE_EXHAUSTED" not in str(error) or "memory" not in str(error):
        return TargetError(text, file)
    found = _SIZES.search(str(error))
    required, capacity = (int(float(found[i]) * _UNITS[found[i + 1]]) if found else 0 for i in (1, 3))
    return DoesNotFitError(text, file, required, capacity, found is not None and found[0].startswith("temporaries"))


def dump_stablehlo(lowered: TargetProgram) -> Path:
    """Write the program's StableHLO to a file in a new temporary folder; return its path."""
    file = Path(tempfile.mkdtemp(prefix="torch_xla-aot-"), "program.mlir")
    file.write_text(lowered.text(), encoding="utf-8")
    return file
