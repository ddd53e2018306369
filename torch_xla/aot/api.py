"""``torch_xla.aot.compile``: compiles a function of xla tensors for a target."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import torch
from jax.experimental import serialize_executable

from torch_xla._engine import recorder
from torch_xla._engine.aot import cache_export, program_analysis, program_collector, target_compiler, targets
from torch_xla._engine.aot.collective_costs import CollectiveCost
from torch_xla._engine.aot.program_analysis import ExpensiveOp, LargeBuffer, MemoryUsage, ProgramCost
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.base import user_frames
from torch_xla._engine.compat import executables
from torch_xla._engine.compilation import hlo_metadata
from torch_xla._engine.execution import executor
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.recorder import source_info


class Compiled:
    """A program compiled for a target. It cannot be run on this machine; it can be analyzed and exported.

    Attributes:
      target: the target.
      seconds: the compile time.
      memory: bytes on one chip: arguments, outputs, aliased, temporaries, code, peak, padding.
      cost: cost of one run on one chip: products, flops, bytes, seconds (an estimate), utilisation, intensity.
      collectives: kind, group, count, bytes and seconds (an estimate) of each kind of collective.
      expensive: the most expensive operations, with their source lines if known.
      largest: the largest temporaries and results, with their source lines if known.
    """

    def __init__(self, compiled: target_compiler.CompiledTargetProgram) -> None:
        found = program_analysis.analyze_program(compiled)
        self._compiled = compiled
        self.target: Target = compiled.lowered.target
        self.seconds = compiled.seconds
        self.memory: MemoryUsage = found.memory
        self.cost: ProgramCost = found.work
        self.collectives: tuple[CollectiveCost, ...] = found.collectives
        self.expensive: tuple[ExpensiveOp, ...] = found.expensive
        self.largest: tuple[LargeBuffer, ...] = found.largest

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a chip."""
        return self.memory.peak <= self.target.chip.hbm_bytes

    def hlo(self) -> str:
        """Return the optimized HLO of the target's compiler, with the user's source lines."""
        return hlo_metadata.inline_sources(self._compiled.stage.as_text() or "")

    def stablehlo(self) -> str:
        """Return the StableHLO before compilation."""
        return self._compiled.lowered.text()

    def serialize(self) -> bytes:
        """Serialize for ``load`` on a machine with the target and the same versions of jax and libtpu."""
        return pickle.dumps(serialize_executable.serialize(self._compiled.stage))

    def fill_cache(self, folder: str | Path) -> Path | None:
        """Write the executable to a folder for XLA_PERSISTENT_CACHE_PATH.

        Returns its path, or None for a program that calls Python.

        Args:
          folder: the folder; it is created.
        """
        return cache_export.write_to_cache(Path(folder), self._compiled)

    def __repr__(self) -> str:
        return (
            f"<program for {self.target.name}: {self.memory.peak} bytes of {self.target.chip.hbm_bytes} at most, "
            f"{self.cost.flops:.3g} FLOP>"
        )


def compile(function: Callable[..., Any], *args: Any, target: str | Target, **kwargs: Any) -> Compiled:
    """Compile for ``target`` the program that ``function(*args, **kwargs)`` records on the current xla device.

    Pending operations run on this machine first. The function is called once; afterwards its operations are pending, as
    after any call. CPU tensors among the arguments are moved to the device. The program computes what a
    ``torch_xla.sync()`` after the call would compute, including in-place writes.

    Args:
      function: a function of xla tensors, such as a training step.
      args, kwargs: its arguments.
      target: name of a target, such as ``"v5e"``, ``"v5e:2x2"`` or ``"h100"``, or a Target.

    Returns:
      The program, with its memory, cost, collectives and HLO.

    Raises:
      ValueError: the target does not exist, or the function records nothing.
      MissingCompilerError: the compiler of the target is not installed.
      LoweringError: an op cannot be lowered for the target.
      DoesNotFitError: the program does not fit into the memory of the target.
      TargetError: the compiler rejects the program for another reason.
    """
    wanted = targets.get_target(target) if isinstance(target, str) else target
    device = int(recorder.bindings().current_device())
    line = user_frames.user_line()
    moved_args, moved_kwargs = jax.tree.map(
        lambda leaf: leaf.to(f"xla:{device}") if _on_cpu(leaf) else leaf, (args, kwargs)
    )
    executor.sync_device(device)
    before = source_info.is_capturing()
    source_info.set_capture(True)
    try:
        result = function(*moved_args, **moved_kwargs)
        with hlo_metadata.record_locations():
            lowered, spec = recorder.bindings().with_execution_lock(device, _lower_for_target, device, wanted)
    finally:
        source_info.set_capture(before)
    del result  # must be alive until here: tensors without references are not results of the graph
    return Compiled(target_compiler.compile_for_target(lowered, spec, line))


def _on_cpu(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"


def _lower_for_target(device: int, target: Target) -> tuple[target_compiler.TargetProgram, graph_spec.GraphSpec]:
    graph = recorder.bindings().collect(device)
    if not graph.root_count:
        raise ValueError(f"aot.compile, target {target.name}: the function records nothing on xla:{device}")
    spec = graph_spec.describe_graph(graph)
    return target_compiler.lower_for_target(spec, target, program_collector.program_placement(graph, spec)), spec


def load(data: bytes) -> jax.stages.Compiled:
    """Load an executable from ``Compiled.serialize`` onto this machine's devices, as a ``jax.stages.Compiled``.

    The executable takes (floats, ints, *inputs), in the order of the recorder. For the programs of a script, prefer
    ``fill_cache``: the engine finds them by itself. Load data from trusted sources only.

    Args:
      data: bytes from ``Compiled.serialize``.

    Raises:
      Exception: jax or XLA rejects the executable, because versions or devices differ.
    """
    payload, in_tree, out_tree = pickle.loads(data)
    executables.initialize_kernels(payload)
    loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(payload, in_tree, out_tree)
    return loaded
