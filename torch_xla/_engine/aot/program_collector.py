"""Collects the graphs that a script compiles and runs, and compiles each distinct one for a target.

observer ──on_compile_begin──► CollectedProgram: lowered for the target immediately; compiled when the script has
                               ended, or immediately if the shardings of its results are needed (abstract mode,
                               unannotated outputs)
         ──on_launch─────────► CollectedProgram.runs
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from torch_xla._engine.aot import program_analysis, target_compiler
from torch_xla._engine.aot.program_analysis import LargeBuffer, ProgramAnalysis
from torch_xla._engine.aot.target_compiler import DoesNotFitError, ProgramPlacement, TargetError, TargetProgram
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.compilation import hlo_metadata
from torch_xla._engine.diagnostics import buffer_provenance, device_memory, observer
from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.parallel import replica_program, spmd
from torch_xla._engine.recorder import source_info


@dataclass(frozen=True, slots=True)
class ProgramArgument:
    """An argument of a program: its bytes on one chip, whether a result is written in place, and its provenance."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    updated: bool
    kind: str
    line: str


@dataclass(slots=True, eq=False)
class CollectedProgram:
    """A distinct program of the script. ``compile`` sets either ``found`` or ``error``."""

    number: int
    spec: GraphSpec
    cause: str
    line: str
    arguments: list[ProgramArgument]
    others: int  # bytes of live tensors that are not arguments
    lowered: TargetProgram | None
    error: Exception | None = None
    found: ProgramAnalysis | None = None
    compiled: target_compiler.CompiledTargetProgram | None = None
    runs: int = 0
    seconds: float = 0.0

    @property
    def largest(self) -> list[LargeBuffer]:
        """Arguments, temporaries and results, largest first."""
        of_arguments = [
            LargeBuffer(a.bytes, f"argument {a.dtype}{list(a.shape)} ({a.kind})", a.line) for a in self.arguments
        ]
        own = list(self.found.largest) if self.found else []
        return sorted(of_arguments + own, key=lambda large: -large.bytes)

    @property
    def least_bytes(self) -> int:
        """A lower bound of the memory on a chip, from arguments and results; their shardings may not be known yet.

        Every element of the results is on at least one chip, and donated arguments are reused.
        """
        arguments = sum(argument.bytes for argument in self.arguments)
        if self.lowered is None:
            return arguments
        reused = sum(argument.bytes for argument in self.arguments if argument.updated)
        results = sum(
            math.prod(each.shape) * each.dtype.itemsize for each in jax.tree.leaves(self.lowered.stage.out_info)
        )
        return arguments + max(0, int(results) // self.lowered.chips - reused)

    def compile(self, begun: Callable[[Path], None]) -> None:
        """Compile the program for its target, once, unless lowering failed; call ``begun`` with its StableHLO file."""
        if self.lowered is None or self.compiled is not None or self.error is not None:
            return
        try:
            self.compiled = target_compiler.compile_for_target(self.lowered, self.spec, self.line, begun)
            self.found = program_analysis.analyze_program(self.compiled)
            self.seconds = self.compiled.seconds
        except TargetError as error:
            self.error = error


class StepLimitReached(BaseException):
    """Raised to end the script after the requested number of steps."""


class UnusableProgram(BaseException):
    """Raised to end the script at its first program that does not fit, or cannot be compiled."""


@dataclass(eq=False)
class ProgramCollector:
    """Collects the programs of a script for a target. It is a listener of the observer.

    Args:
      target: the devices to compile for.
      steps: number of step barriers after which to end the script; None does not end it.
      ends_at_error: end the script at its first program that does not fit or cannot be compiled, by UnusableProgram. A
        program whose arguments and results alone exceed the memory of a chip is not compiled.
      around: returns a context manager around each compilation. It yields a function that is called with the path of
        the program's StableHLO.
    """

    target: Target
    steps: int | None = None
    around: Callable[[CollectedProgram], AbstractContextManager[Callable[[Path], None]]] = lambda _: nullcontext(
        lambda file: None
    )
    ends_at_error: bool = False
    programs: list[CollectedProgram] = field(default_factory=list)
    barriers: int = 0
    #: Runs in the latest complete step, by the program's number.
    step_runs: dict[int, int] = field(default_factory=dict)
    _runs: dict[int, int] = field(default_factory=dict)
    _by_key: dict[Any, CollectedProgram] = field(default_factory=dict)
    _by_text: dict[str, CollectedProgram] = field(default_factory=dict)
    _latest: CollectedProgram | None = None

    def on_compile_begin(self, event: observer.CompileEvent) -> None:
        """A graph without a program is about to be compiled here."""
        graph, spec, device = event.graph, event.spec, event.device
        lowered, error = self._lowered(graph, spec)
        text = lowered.text() if lowered else repr((spec.nodes, spec.leaves, spec.roots))
        key = hashlib.sha256(text.encode()).hexdigest()
        seen = self._by_text.get(key)
        if seen is None:
            arguments, others = _program_arguments(graph, spec, device)
            number = len(self.programs) + 1
            seen = self._by_text[key] = CollectedProgram(
                number, spec, event.cause, event.line, arguments, others, lowered, error
            )
            self.programs.append(seen)
        self._by_key[device, graph.key] = self._latest = seen
        if self.ends_at_error:
            self._check_size(seen)

    def _check_size(self, seen: CollectedProgram) -> None:
        """Raise UnusableProgram if the program cannot be compiled, or exceeds the memory without its temporaries."""
        capacity = self.target.chip.hbm_bytes
        least = seen.least_bytes + seen.others
        if seen.error is None and least > capacity:
            text = (
                f"target {self.target.name}: arguments and results alone need {format_bytes(least)} of "
                f"{format_bytes(capacity)}; the program was not compiled"
            )
            seen.error = DoesNotFitError(text, None, least - seen.others, capacity)
        if seen.error is not None:
            raise UnusableProgram

    def _lowered(self, graph: Any, spec: GraphSpec) -> tuple[TargetProgram | None, Exception | None]:
        try:
            return target_compiler.lower_for_target(spec, self.target, program_placement(graph, spec)), None
        except (LoweringError, ValueError) as error:
            return None, error

    def compile(self, seen: CollectedProgram) -> None:
        """Compile a program for the target, unless that was done before."""
        if seen.compiled is None and seen.error is None:
            with self.around(seen) as begun:
                seen.compile(begun)
        if self.ends_at_error and not _is_usable(seen, self.target):
            raise UnusableProgram

    def result_shardings(self, spec: GraphSpec) -> Sequence[Sharding] | None:
        """Return the shardings that the target's compiler chooses for the results of the latest graph.

        Returns None if compilation failed. ``abstract_device.enable`` takes this function; it calls it after
        ``compiled`` for the same graph.
        """
        seen = self._latest
        assert seen is not None
        self.compile(seen)
        return (
            None
            if seen.compiled is None
            else target_compiler.query_result_shardings(seen.compiled, spmd.mesh_devices())
        )

    def on_compile_end(self, event: observer.CompileEvent) -> None:
        """Nothing is left to do."""

    def on_launch(self, graph: Any, device: int) -> None:
        """Count a run of a graph on this machine."""
        seen = self._by_key.get((device, graph.key))
        if seen is not None:
            seen.runs += 1
            self._runs[seen.number] = self._runs.get(seen.number, 0) + 1

    def on_fallback(self, op: str, line: str) -> None:
        """Do nothing: CPU fallbacks are not programs of the target."""

    def on_step_end(self, device: int) -> None:
        """Count a step barrier. Raises StepLimitReached at the last requested step."""
        self.barriers += 1
        self.step_runs, self._runs = self._runs, {}
        if self.steps is not None and self.barriers >= self.steps:
            raise StepLimitReached

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect every graph of this process within the block, with the source locations of their operations."""
        before = source_info.is_capturing()
        source_info.set_capture(True)
        observer.listeners.append(self)
        try:
            with hlo_metadata.record_locations():
                yield
        finally:
            observer.listeners.remove(self)
            source_info.set_capture(before)


def program_placement(graph: Any, spec: GraphSpec) -> ProgramPlacement:
    """Return the placement of a recorder Graph on this process's devices."""
    leaves = spmd.input_shardings(graph.inputs())
    if leaves is not None:
        return ProgramPlacement(spmd.replicated_sharding(), leaves, tuple(spec.root_shardings))
    return ProgramPlacement(replica_group=replica_program.replica_group_of(spec))


def _program_arguments(graph: Any, spec: GraphSpec, device: int) -> tuple[list[ProgramArgument], int]:
    """Return the arguments of the graph, and the bytes on a chip of all other live buffers."""
    donated, read, found = set(spec.donated), set(), []
    inputs = zip(graph.inputs(), spec.leaves, graph.input_provenances(), strict=True)
    for place, (array, (shape, dtype), number) in enumerate(inputs):
        provenance = buffer_provenance.provenance_from_id(number)
        named = str(dtype).removeprefix("torch.")
        found.append(
            ProgramArgument(
                _bytes_per_device(array), tuple(shape), named, place in donated, provenance.kind, provenance.line
            )
        )
        read.add(id(array))
    others = sum(_bytes_per_device(array) for array, _ in device_memory.live_buffers(device) if id(array) not in read)
    return found, others


def _is_usable(seen: CollectedProgram, target: Target) -> bool:
    """Return whether a program compiled for its target, and fits."""
    return seen.error is None and (seen.found is None or seen.found.memory.peak + seen.others <= target.chip.hbm_bytes)


def _bytes_per_device(array: jax.Array) -> int:
    """Return the bytes of an array on one device."""
    shape = array.sharding.shard_shape(array.shape)
    size = int(array.dtype.itemsize)
    for length in shape:
        size *= length
    return size
