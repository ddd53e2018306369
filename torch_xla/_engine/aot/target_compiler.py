"""Compiles a recorded graph for the devices of a target, as it would be compiled there: dtypes, precision, shardings.

GraphSpec ──lower──► Lowered (StableHLO, of this platform) ──compile──► jax.stages.Compiled, which cannot be run
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
    """A program cannot be compiled for a target. ``file`` holds its StableHLO, if it came so far."""

    def __init__(self, message: str, file: Path | None = None) -> None:
        super().__init__(message)
        self.file = file


class DoesNotFitError(TargetError):
    """The compiler of a target finds no room for a program; ``needs`` and ``room`` in bytes, 0 where it says none.

    ``beside``: whether what it needs comes on top of its arguments.
    """

    def __init__(self, message: str, file: Path | None, needs: int, room: int, beside: bool = False) -> None:
        super().__init__(message, file)
        self.needs, self.room, self.beside = needs, room, beside


#: "memory required for HLO temporaries (64.00G) exceeds available HBM (15.75G)", "Used 26.06G of 15.75G hbm"
_SIZES = re.compile(r"(?:temporaries \(|Used )([\d.]+)([KMGT]).*?([\d.]+)([KMGT])", re.DOTALL)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class ProgramPlacement:
    """How a program lies on devices. None for one device.

    Args:
      spread: of SPMD, where numbers lie: on all devices of this process.
      leaves, results: how each lies on them; a result of 0 as the compiler likes.
      team: the replicas that run it together, each on its own device.
    """

    spread: Sharding | None = None
    leaves: tuple[Sharding, ...] = ()
    results: tuple[int, ...] = ()
    team: replica_program.ReplicaGroup | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TargetProgram:
    """A program in StableHLO, for a target."""

    target: Target
    stage: jax.stages.Lowered
    chips: int  # how many run it together

    def text(self) -> str:
        """The StableHLO."""
        return self.stage.as_text()


def lower_for_target(spec: GraphSpec, target: Target, layout: ProgramPlacement | None = None) -> TargetProgram:
    """The program of a graph for a target.

    Raises LoweringError for an op that cannot be built there, ValueError where it needs more devices than there are.
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
    # As in compilation/placement.py, so that a program has the same name on disk: one device is that of the arguments.
    place = SingleDeviceSharding(target.devices[0]) if layout.team is None and layout.spread is None else None
    numbers: list[Any] = [
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    ]
    leaves = [
        jax.ShapeDtypeStruct(shape, dtypes.storage_numpy_dtype(dtype), sharding=place) for shape, dtype in spec.leaves
    ]
    options: dict[str, Any] = {"donate_argnums": tuple(position + 2 for position in spec.donated)}
    count = 1
    if layout.team is not None:
        over = moved(layout.team.sharding)
        function = replica_program.shard_map_over(function, replica_program.ReplicaGroup(layout.team.ordinals, over))
        options |= {"in_shardings": over, "out_shardings": over}
        count = len(over.device_set)
    elif layout.spread is not None:
        everywhere = moved(layout.spread)
        leaves = [
            jax.ShapeDtypeStruct(sharding_ids.padded_shape(leaf.shape, way), leaf.dtype, sharding=way)
            for leaf, way in zip(leaves, map(moved, layout.leaves), strict=True)
        ]
        given = dataclasses.replace(spec, root_shardings=list(layout.results))
        leaving = io_shardings.output_shardings(given, leaves, everywhere)
        function = io_shardings.with_padded_io(function, given, leaving)
        options |= {
            "in_shardings": io_shardings.input_shardings([*numbers, *leaves], everywhere),
            "out_shardings": leaving,
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
    """A sharding over devices of this process as the same one over those of a target, in their order."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, sharding: Sharding) -> NamedSharding:
        if not isinstance(sharding, NamedSharding):
            raise TypeError(f"target {self._target.name}: a sharding {sharding} has no mesh to be moved to it")
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
    """A sharding as the same one over other devices."""
    mesh = Mesh(np.array(devices).reshape(sharding.mesh.devices.shape), sharding.mesh.axis_names)
    return reordered_sharding(mesh, sharding.spec, device_order(sharding))


def query_result_shardings(compiled: CompiledTargetProgram, devices: Sequence[jax.Device]) -> list[Sharding]:
    """How the results of a program would lie on other devices, as many as it is compiled for."""
    found: Sequence[Sharding] = compiled.stage.output_shardings  # those of a list, in order
    return [
        _on_devices(devices, lies) if isinstance(lies, NamedSharding) else to_named_sharding(lies, tuple(devices))
        for lies in found
    ]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledTargetProgram:
    """A program compiled for a target, and how long that took."""

    lowered: TargetProgram
    stage: jax.stages.Compiled
    seconds: float


def compile_for_target(
    lowered: TargetProgram, spec: GraphSpec | None, where: str = "", begun: Callable[[Path], None] = lambda file: None
) -> CompiledTargetProgram:
    """Compiles a program for its target.

    Args:
      spec: the graph, for messages; None for a program that is none.
      where: what names it in messages, such as the user's line.
      begun: told, before the compiler starts, which file holds the StableHLO: a compiler that crashes says nothing.

    Raises TooLargeError where the compiler finds no room for it, TargetError where it refuses it.
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
    needs, room = (int(float(found[i]) * _UNITS[found[i + 1]]) if found else 0 for i in (1, 3))
    return DoesNotFitError(text, file, needs, room, found is not None and found[0].startswith("temporaries"))


def dump_stablehlo(lowered: TargetProgram) -> Path:
    """Writes the program's StableHLO to a file in a new folder, and returns which."""
    file = Path(tempfile.mkdtemp(prefix="torch_xla-aot-"), "program.mlir")
    file.write_text(lowered.text(), encoding="utf-8")
    return file
