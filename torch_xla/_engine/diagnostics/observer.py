"""What the executor tells of each graph: when it compiles, runs, and ends; everything that watches hangs off here.

Observing never fails a program: nothing here is needed for its values. In the common case, a program that is known,
it costs a walk to the user's frame and a few dictionary look-ups a run.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import analysis, causes, journal, memory, metrics, metrics_file, progress, provenance
from torch_xla._engine.diagnostics.explain import Situation
from torch_xla._engine.diagnostics.recompilation import watcher
from torch_xla._engine.graph import program, summary

_compile_log = logging.getLogger("torch_xla.compile")
_execute_log = logging.getLogger("torch_xla.execute")
_fallback_log = logging.getLogger("torch_xla.fallback")
_memory_log = logging.getLogger("torch_xla.memory")


@dataclass(slots=True)
class Sizes:
    """Bytes of a compiled program: of each result, and what it needs on top of its inputs while it runs."""

    results: list[int]
    extra: int = 0
    smallest: int = field(init=False)  # which result

    def __post_init__(self) -> None:
        self.smallest = min(range(len(self.results)), key=self.results.__getitem__, default=0)


def sizes(compiled: jax.stages.Compiled) -> Sizes:
    """The sizes of a program. Where the compiler does not tell what it needs while running, that counts as nothing."""
    results = [int(info.size) * info.dtype.itemsize for info in jax.tree.leaves(compiled.out_info)]
    stats = _analysis(compiled)
    if stats is None:
        return Sizes(results)
    return Sizes(results, stats.output_size_in_bytes + stats.temp_size_in_bytes - stats.alias_size_in_bytes)


def _analysis(compiled: jax.stages.Compiled) -> Any:
    try:
        return compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


def compilation(graph: Any, spec: program.GraphSpec, device: int) -> AbstractContextManager[None]:
    """Around the lowering and compilation of a graph that was not known."""
    if analysis.level() >= 1:
        analysis.graph("Compilation", causes.reason(), graph.key, len(spec.leaves), len(spec.roots))
    return _compilation(graph, spec, device, causes.reason(), frames.user_line())


@contextmanager
def _compilation(graph: Any, spec: program.GraphSpec, device: int, cause: str, line: str) -> Iterator[None]:
    ops = len(spec.nodes)
    start = time.perf_counter_ns()
    with progress.compiling(ops):
        yield
    duration = time.perf_counter_ns() - start
    journal.current().compilations.append(journal.Compilation(start, duration, ops, cause, line))
    _compile_log.info("%d ops in %s, %s at %s", ops, metrics.format_time(duration), cause, line)
    situation = Situation(line, cause, tuple(journal.current().reads), _makers(graph, device), ops)
    watcher.compiled((device, cause, line), summary.sketch(spec), situation)


def _makers(graph: Any, device: int) -> tuple[provenance.Maker, ...]:
    known = {id(array): number for array, _, number in recorder.module().buffers(device)}
    return tuple(provenance.maker(known.get(id(array), 0)) for array in graph.inputs())


def compiled(program_: jax.stages.Compiled) -> None:
    """A program has been compiled."""
    stats = _analysis(program_) if analysis.level() >= 1 else None
    if stats is not None:
        analysis.sizes(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.generated_code_size_in_bytes,
        )


@contextmanager
def execution(graph: Any, device: int, size: Sizes) -> Iterator[None]:
    """Around the start of a program. What it needs counts as having been in use only if it could start."""
    line, cause = frames.user_line(), causes.reason()
    watcher.ran((device, cause, line))
    metrics.count("ExecuteComputation")
    step = journal.current()
    step.ops += graph.node_count
    needed = memory.used(device) + size.extra
    recorder.module().set_maker(provenance.number("result", line))
    if analysis.level() >= 2:
        analysis.graph("Execution", cause, graph.key, len(graph.leaf_shapes), graph.root_count)
    if _execute_log.isEnabledFor(logging.INFO):
        _execute_log.info("%d ops, %d results, %s at %s", graph.node_count, graph.root_count, cause, line)
    yield
    step.peak_bytes = max(step.peak_bytes, needed)
    memory.reached(device, needed)


def fallback(op: str, line: str) -> None:
    """An op is about to run on the CPU."""
    journal.begin_fallback(op, line)
    _fallback_log.info("%s runs on the CPU, at %s", op, line)


def step_ended(device: int) -> None:
    """A barrier has sent the step off."""
    step = journal.close(memory.end_step(device))
    _memory_log.info("step %d: at most %d bytes on xla:%d", step.number, step.peak_bytes, device)
    metrics_file.save()
    watcher.step_ended()


def announce_step() -> None:
    """XLA_EMIT_STEPLOG: a line for whoever watches the process's stderr for signs of life."""
    if settings.XLA_EMIT_STEPLOG:
        print("torch_xla.core.xla_model::mark_step", file=sys.stderr, flush=True)


def wait(values: Sequence[jax.Array]) -> None:
    """Waits for values; the time counts as waiting for the device."""
    with journal.spent("wait"):
        jax.block_until_ready(values)
