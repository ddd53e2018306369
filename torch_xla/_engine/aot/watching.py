"""Compiles for a target what a script records: told of each graph as it is compiled and run here.

observer ──on_compile_begin──► Seen: lowered for the target at once, compiled for it when the script has ended, or at
                               once where that has to say how results lie (no values are computed, and nobody has laid
                               them out)
         ──on_launch─────────► Seen.runs
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding

from torch_xla._engine import recorder
from torch_xla._engine.aot import analysis, compiler
from torch_xla._engine.aot.analysis import Analysis, Large
from torch_xla._engine.aot.compiler import Layout, Lowered, TargetError
from torch_xla._engine.aot.targets import Target
from torch_xla._engine.diagnostics import memory, observer, provenance
from torch_xla._engine.graph import hlo_metadata
from torch_xla._engine.graph.specs import GraphSpec
from torch_xla._engine.lowering.apply import LoweringError
from torch_xla._engine.parallel import replicated, sharded
from torch_xla._engine.recorder import origins


@dataclass(frozen=True, slots=True)
class Argument:
    """What a program reads: its bytes on one chip, whether a result takes its place, and what made it at which line."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    updated: bool
    kind: str
    line: str


@dataclass(slots=True, eq=False)
class Seen:
    """A distinct program. After ``compile``: ``found``, or ``error``."""

    number: int
    spec: GraphSpec
    cause: str
    line: str
    arguments: list[Argument]
    others: int  # bytes of tensors that are alive beside it
    lowered: Lowered | None
    error: Exception | None = None
    found: Analysis | None = None
    compiled: compiler.Compiled | None = None
    runs: int = 0
    seconds: float = 0.0

    @property
    def largest(self) -> list[Large]:
        """Arguments and own values, largest first."""
        of_arguments = [Large(a.bytes, f"argument {a.dtype}{list(a.shape)} ({a.kind})", a.line) for a in self.arguments]
        own = list(self.found.largest) if self.found else []
        return sorted(of_arguments + own, key=lambda large: -large.bytes)

    def compile(self, begun: Callable[[Path], None]) -> None:
        """Compiles it for its target, once; ``begun`` is told where its StableHLO is. Not what could not be lowered."""
        if self.lowered is None or self.compiled is not None or self.error is not None:
            return
        try:
            self.compiled = compiler.compile(self.lowered, self.spec, self.line, begun)
            self.found = analysis.analyse(self.compiled)
            self.seconds = self.compiled.seconds
        except TargetError as error:
            self.error = error


class StepsDone(BaseException):
    """The script has made the steps that were asked for."""


@dataclass(eq=False)
class Watcher:
    """What a script's graphs become on a target.

    Args:
      steps: after how many barriers to end the script; None: never.
      around: a block in which a program is compiled; what it gives is told which file holds the StableHLO.
    """

    target: Target
    steps: int | None = None
    around: Callable[[Seen], AbstractContextManager[Callable[[Path], None]]] = lambda _: nullcontext(lambda file: None)
    programs: list[Seen] = field(default_factory=list)
    barriers: int = 0
    _by_key: dict[Any, Seen] = field(default_factory=dict)
    _by_text: dict[str, Seen] = field(default_factory=dict)
    _latest: Seen | None = None

    def on_compile_begin(self, event: observer.CompileEvent) -> None:
        """A graph without a program is about to be compiled here."""
        graph, spec, device = event.graph, event.spec, event.device
        lowered, error = self._lowered(graph, spec)
        text = lowered.text() if lowered else repr((spec.nodes, spec.leaves, spec.roots))
        key = hashlib.sha256(text.encode()).hexdigest()
        seen = self._by_text.get(key)
        if seen is None:
            arguments, others = _arguments(graph, spec, device)
            number = len(self.programs) + 1
            seen = self._by_text[key] = Seen(number, spec, event.cause, event.line, arguments, others, lowered, error)
            self.programs.append(seen)
        self._by_key[device, graph.key] = self._latest = seen

    def _lowered(self, graph: Any, spec: GraphSpec) -> tuple[Lowered | None, Exception | None]:
        try:
            return compiler.lower(spec, self.target, layout(graph, spec)), None
        except (LoweringError, ValueError) as error:
            return None, error

    def compile(self, seen: Seen) -> None:
        """Compiles a program for the target, unless that was done before."""
        if seen.compiled is None and seen.error is None:
            with self.around(seen) as begun:
                seen.compile(begun)

    def results(self, spec: GraphSpec) -> Sequence[Sharding] | None:
        """How the results of a graph lie, as the target's compiler has it; None where that refuses the program.

        For abstract.switch_on: a graph that has just been told of.
        """
        seen = self._latest
        assert seen is not None
        self.compile(seen)
        return None if seen.compiled is None else compiler.results(seen.compiled, sharded.mesh_devices())

    def on_compile_end(self, event: observer.CompileEvent) -> None:
        """Nothing is left to do."""

    def on_launch(self, graph: Any, device: int) -> None:
        """A graph is about to run here."""
        seen = self._by_key.get((device, graph.key))
        if seen is not None:
            seen.runs += 1

    def on_fallback(self, op: str, line: str) -> None:
        """What runs on the CPU is no program of the target."""

    def on_step_end(self, device: int) -> None:
        """A barrier. Raises StepsDone at the last one that was asked for."""
        self.barriers += 1
        if self.steps is not None and self.barriers >= self.steps:
            raise StepsDone

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In the block it is told of every graph of this process, and these carry the user's lines."""
        before = origins.capturing()
        hlo_metadata.install()
        origins.capture(True)
        observer.listeners.append(self)
        try:
            yield
        finally:
            observer.listeners.remove(self)
            origins.capture(before)


def layout(graph: Any, spec: GraphSpec) -> Layout:
    """How a recorder Graph lies on this process's devices."""
    leaves = sharded.input_shardings(graph.inputs())
    if leaves is not None:
        return Layout(sharded.replicated(), leaves, tuple(spec.root_shardings))
    return Layout(team=replicated.team_of(spec))


def _arguments(graph: Any, spec: GraphSpec, device: int) -> tuple[list[Argument], int]:
    """What the graph reads, and the bytes on a chip of all other buffers."""
    numbers = {id(array): number for array, _, number in recorder.module().buffers(device)}
    donated, read, found = set(spec.donated), set(), []
    for place, (array, (shape, dtype)) in enumerate(zip(graph.inputs(), spec.leaves, strict=True)):
        maker = provenance.of(numbers.get(id(array), 0))
        named = str(dtype).removeprefix("torch.")
        found.append(Argument(_on_chip(array), tuple(shape), named, place in donated, maker.kind, maker.line))
        read.add(id(array))
    others = sum(_on_chip(array) for array, _ in memory.buffers(device) if id(array) not in read)
    return found, others


def _on_chip(array: jax.Array) -> int:
    """Bytes of an array on one device."""
    shape = array.sharding.shard_shape(array.shape)
    size = int(array.dtype.itemsize)
    for length in shape:
        size *= length
    return size
