"""Compiles a graph for its placement: jit, lower, then compile or load from the persistent cache."""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat import lowering_caches, pjrt_execution, sharding
from torch_xla._engine.compilation import abstract_program, graph_function, native_executable
from torch_xla._engine.compilation.graph_function import CheckedOps
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import graph_key
from torch_xla._engine.compilation.placement import MeshPlacement, Placement, ReplicaThreadsPlacement
from torch_xla._engine.cpu_backend import library, malloc_tuning
from torch_xla._engine.device import abstract_device, capabilities, devices
from torch_xla._engine.diagnostics import xla_errors
from torch_xla._engine.graph import flop_count, graph_spec, program_info
from torch_xla._engine.graph.flop_count import NO_WORK, ProgramWork
from torch_xla._engine.graph.program_info import GraphOutline, ProgramSizes
from torch_xla._engine.parallel import spmd

_log = logging.getLogger(__name__)
#: Number of operations of a program from which the compiler leaves tens to hundreds of MB of free memory in malloc's
#: arenas, and the interpreter of the steps before tens. Returning it to the system takes little time compared to
#: compiling; before the compilation, it lowers the peak.
_LEAVES_MUCH = 40


@dataclass(eq=False)
class CompiledProgram:
    """A compiled graph. Immutable; several threads may launch it.

    Attributes:
      executable: the recorder's Executable.
      compiled: jax's executable; None on abstract devices.
      outline: describes the graph in messages.
      exchanges: one line per collective; all members of the group must have equal lines.
      handlers: the library of CPU kernels, if the program calls any (``kernel_calls`` of them).
      checked: the nodes that the program's last result may name (lowering/value_checks.py); None without checks.
      work: the floating-point operations of one run.
      bucketed: programs of the same graph with buckets (bucketed_program.py), by the arrays in them.
    """

    executable: Any
    compiled: jax.stages.Compiled | None
    outline: GraphOutline
    sizes: ProgramSizes
    placement: Placement
    exchanges: Sequence[str] = ()
    handlers: library.KernelLibrary | None = None
    kernel_calls: int = 0
    checked: CheckedOps | None = None
    work: ProgramWork = NO_WORK
    bucketed: dict[Hashable, Any] = field(default_factory=dict)


def compile_graph(spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[jax.Array]) -> CompiledProgram:
    """Compile a graph for its placement, or load the program from the persistent cache.

    ``leaves`` are the placed inputs. Raises LoweringError for an op that cannot be lowered.
    """
    devices.warn_late_dtype_settings()
    if abstract_device.is_enabled():
        return _compile_abstract(spec, placement, leaves)
    device = placement.device
    with recorder.enable_x64():
        arguments = [*_scalar_structs(spec, placement.sharding), *leaves]
        jitted = placement.jit(spec, arguments, donates=True)
    outline = program_info.graph_outline(spec)
    with (
        recorder.enable_x64(),
        xla_errors.translate_xla_errors(lambda: f"compiling {outline}", placement.ordinal, outline),
        library.kernels_enabled(device) as (handlers, called),
    ):

        def build(jitted: Any, donates: bool, unspecified: bool = True) -> tuple[jax.stages.Compiled, bool]:
            try:
                name = _persistent_name(spec, placement, leaves, donates)
                lower = functools.partial(jitted.lower, *arguments)
                return persistent_cache.load_or_compile(lower, placement.program_devices, name, called)
            except sharding.indivisible_error():
                if not unspecified:
                    raise
                # No axes of the mesh describe the sharding that XLA would choose for an output.
                return build(placement.jit(spec, arguments, donates, unspecified=False), donates, unspecified=False)

        if len(spec.nodes) >= _LEAVES_MUCH:
            malloc_tuning.trim_free_memory()
        compiled, loaded = build(jitted, donates=True)
        if spec.donated and pjrt_execution.has_python_callbacks(compiled):
            # A Python callback may raise after the program has begun to overwrite its donated inputs.
            compiled, loaded = build(placement.jit(spec, arguments, donates=False), donates=False)
        lowering_caches.release_jaxprs()
        results = placement.result_shardings(compiled) if placement.has_result_shardings else ()
        joined = isinstance(placement, ReplicaThreadsPlacement)
        executable, sizes = native_executable.make_executable(
            compiled, placement.sharding, len(spec.roots), results, joined
        )
        if not loaded and len(spec.nodes) >= _LEAVES_MUCH:
            malloc_tuning.trim_free_memory()
        if capabilities.runs_in_process(device):
            malloc_tuning.retain_free_memory()
    exchanges = placement.collective_signature(spec) if placement.group is not None else ()
    has_checks = len(jax.tree.leaves(compiled.out_info)) > len(spec.roots)
    checked = graph_function.checked_ops(spec) if has_checks else None
    return CompiledProgram(
        executable, compiled, outline, sizes, placement, exchanges, handlers if called else None, called.total(),
        checked, _measure_work(spec, placement),
    )  # fmt: skip


def _measure_work(spec: graph_spec.GraphSpec, placement: Placement) -> ProgramWork:
    devices = len(placement.sharding.device_set) if isinstance(placement, MeshPlacement) else 1
    try:
        return flop_count.measure_work(spec, devices)
    except Exception:
        _log.info("could not count the FLOPs of a program", exc_info=True)  # the figure of a report
        return NO_WORK


def _persistent_name(
    spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[jax.Array], donates: bool
) -> str | None:
    if not placement.has_graph_key:
        return None
    return graph_key.graph_cache_key(spec, leaves, placement.device, donates, placement.is_checked)


def _compile_abstract(spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[Any]) -> CompiledProgram:
    if placement.group is not None:
        raise RuntimeError(
            "abstract devices do not support collectives between replicas (xmp.spawn, DataParallel); with --abstract, "
            "use several devices through SPMD: torch_xla.runtime.use_spmd()"
        )
    spread = isinstance(placement, MeshPlacement)
    results = (
        spec.root_shardings
        if all(spec.root_shardings) or not spread
        else _query_result_shardings(spec, placement, leaves)
    )
    executable, sizes = abstract_program.make_abstract_executable(spec, placement.sharding, results if spread else ())
    return CompiledProgram(executable, None, program_info.graph_outline(spec), sizes, placement)


def _query_result_shardings(spec: graph_spec.GraphSpec, placement: Placement, leaves: Sequence[Any]) -> Sequence[int]:
    """Return the id of each output's sharding; compiles the graph to find the shardings that XLA chooses."""
    known = abstract_device.query_result_shardings(spec)
    if known is not None:
        ranks = [len(abstract_program.result_spec(spec, root)[0]) for root in spec.roots]
        return [
            sharding_ids.sharding_id(spmd.normalize_sharding(chosen), rank)
            for chosen, rank in zip(known, ranks, strict=True)
        ]
    with recorder.enable_x64():
        structs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding) for leaf in leaves]
        arguments = [*_scalar_structs(spec, placement.sharding), *structs]
        lowered = placement.jit(spec, arguments, donates=False).lower(*arguments)
        return placement.result_shardings(lowered.compile({"xla_backend_optimization_level": 0}))  # never launched


def _scalar_structs(spec: graph_spec.GraphSpec, place: Sharding) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        jax.ShapeDtypeStruct((spec.floats,), np.float64, sharding=place),
        jax.ShapeDtypeStruct((spec.ints,), np.int64, sharding=place),
    )
