"""Receive the executor's events (compile, launch, end of a step) and forward them to metrics, logs and profilers.

Errors in diagnostics never fail a program. For a cached program, an execution costs one walk to the user's frame and a
few dictionary lookups.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import (
    buffer_provenance,
    compile_progress,
    completion,
    debug_analysis,
    device_memory,
    metrics,
    metrics_file,
    profiler_spans,
    step_timings,
    sync_reasons,
)
from torch_xla._engine.diagnostics.recompilation_explanation import RecompilationContext
from torch_xla._engine.diagnostics.recompilation_tracker import Site, tracker
from torch_xla._engine.graph import graph_spec, graph_summary, program_info
from torch_xla._engine.graph.flop_count import ProgramWork
from torch_xla._engine.graph.graph_run import GraphRun

T = TypeVar("T")


@dataclass(slots=True)
class CompileEvent:
    """One compilation of a graph for a device, with its user line and the sync reason.

    The caller that compiles sets ``program``, the result.
    """

    graph: Any
    spec: graph_spec.GraphSpec
    device: int
    line: str
    cause: str
    program: Any = None


class Listener(Protocol):
    """Receives every graph. Listeners run on the critical path of a step, so none is registered by default."""

    def on_compile_begin(self, event: CompileEvent) -> None:
        """Called before a new graph is compiled; no state has changed yet."""

    def on_compile_end(self, event: CompileEvent) -> None:
        """Called after a graph was compiled; not called if compilation failed."""

    def on_launch(self, graph: Any, device: int) -> None:
        """Called before a graph is launched."""

    def on_fallback(self, op: str, line: str) -> None:
        """Called before an op runs on the CPU."""

    def on_step_end(self, device: int) -> None:
        """Called after a barrier has launched the step."""


#: The registered listeners.
listeners: list[Listener] = []

_compile_log = logging.getLogger("torch_xla.compile")
_execute_log = logging.getLogger("torch_xla.execute")
_fallback_log = logging.getLogger("torch_xla.fallback")
_memory_log = logging.getLogger("torch_xla.memory")


def observe_compilation(run: GraphRun, place: str, compile_program: Callable[[graph_spec.GraphSpec], T]) -> T:
    """Compile a new graph. Report it to the debug output and the listeners before, and to all trackers after.

    Args:
      run: the run of the graph.
      place: the placement of its program, as reports name it.
      compile_program: lowers and compiles the graph.
    """
    graph, spec, (device, cause, line) = run.graph, run.spec, current_site(run)
    event, ops = CompileEvent(graph, spec, device, line, cause), len(spec.nodes)
    if debug_analysis.debug_level() >= 1:
        debug_analysis.write_graph_block("Compilation", cause, graph.key, len(spec.leaves), len(spec.roots))
    for listener in listeners:
        listener.on_compile_begin(event)
    start = time.perf_counter_ns()
    with (
        compile_progress.show_compile_progress(ops),
        profiler_spans.span("compile", profiler_spans.program_label(line, ops)),
    ):
        program = event.program = compile_program(spec)
        _note_program(program, len(spec.donated))
    duration = time.perf_counter_ns() - start
    record = step_timings.CompilationRecord(start, duration, ops, cause, line)
    step_timings.current_step().compilations += (record,)
    if _compile_log.isEnabledFor(logging.INFO):
        _compile_log.info("%d ops in %s, %s at %s", ops, metrics.format_time(duration), cause, line)
    context = RecompilationContext(
        line, cause, tuple(step_timings.current_step().reads), _provenances(graph), ops, duration / 1e9
    )
    found = tracker.compiled((device, cause, line), graph_summary.summarize(spec, graph.key, place), context)
    record.unexpected = found is not None
    for listener in listeners:
        listener.on_compile_end(event)
    return program


def _provenances(graph: Any) -> tuple[buffer_provenance.Provenance, ...]:
    return tuple(map(buffer_provenance.provenance_from_id, graph.input_provenances()))


def _note_program(program: Any, aliases: int) -> None:
    """Count a program that was compiled or loaded. ``aliases`` is the number of donated inputs."""
    has_values = program.compiled is not None
    stats = program_info.memory_analysis(program.compiled) if has_values and debug_analysis.debug_level() >= 1 else None
    if stats is not None:
        debug_analysis.write_size_block(
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes,
            stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.generated_code_size_in_bytes,
        )
    metrics.count("CreateCompileHandles")
    if program.kernel_calls:
        metrics.count("CpuKernelCalls", program.kernel_calls)
    if has_values:
        metrics.sample("InputOutputAliasCount", aliases)


def current_site(run: GraphRun) -> Site:
    """Return the site of a graph: device, sync reason and user line. Computed once per run."""
    if run.site is None:
        run.site = run.device, sync_reasons.current_sync_reason(), user_frames.user_line()
    return run.site


def on_interpreted(graph: Any, spec: graph_spec.GraphSpec, site: Site, place: str) -> None:
    """Record an interpreted graph, with which the next one of its site is compared if that makes the site unstable."""
    tracker.interpreted(site, graph_summary.summarize(spec, graph.key, place))


def on_unstable_site(graph: Any, spec: graph_spec.GraphSpec, site: Site, place: str) -> None:
    """Record the first interpreted graph of an unstable site, which records a new graph on every call."""
    _, cause, line = site
    reads, provenances = tuple(step_timings.current_step().reads), _provenances(graph)
    new = graph_summary.summarize(spec, graph.key, place)
    tracker.report_unstable_site(site, new, RecompilationContext(line, cause, reads, provenances, graph.node_count))


class ExecutionRecord:
    """One run of a graph, created before the launch and updated when it is launched and when it has finished.

    Args:
      kind: the metric of its time.
      span: a block around the launch.
      unstable: whether it is interpreted because its site records a new graph on every call.
    """

    __slots__ = ("_cause", "_device", "_kind", "_line", "_ops", "_start", "_unstable", "span")

    def __init__(
        self,
        ops: int,
        where: Site,
        kind: str,
        span: AbstractContextManager[Any] = profiler_spans.NOTHING,
        unstable: bool = False,
    ) -> None:
        self._device, self._cause, self._line = where
        self._ops, self._kind, self.span, self._unstable = ops, kind, span, unstable
        self._start = time.perf_counter_ns()

    def launched(self, results: Sequence[jax.Array], token: Any = None) -> None:
        """Record the launch; the program ends when the token, or its first result, is ready.

        Errors here are only logged, because the nodes have their values already.
        """
        first: Any = results[0] if results else None
        # The CPU backend runs small programs inline. Passing those to another thread would cost more than they do.
        has_ended = first is None or first.is_ready()
        self._record(None if has_ended else first if token is None else token, first)

    def finished(self) -> None:
        """Record that the graph was interpreted; errors are only logged."""
        run = step_timings.InterpretationRecord(
            time.perf_counter_ns() - self._start, self._ops, self._line, self._unstable
        )
        step_timings.current_step().interpretations += (run,)
        self._record(None)

    def _record(self, awaited: Any, result: Any = None) -> None:
        duration = time.perf_counter_ns() - self._start
        try:
            metrics.sample("TensorsGraphSize", self._ops)
            time_metric = metrics.metric(self._kind, metrics.format_time)
            run = self._profiler_event(None if awaited is None else result) if profiler_spans.is_profiling() else None
            if awaited is None:
                time_metric.add(duration)
            else:
                completion.track_completion(self._device, time_metric, self._start, awaited, run)
            step_timings.add_time(self._kind, duration)
            step_timings.current_step().ops += self._ops
            if _execute_log.isEnabledFor(logging.INFO):
                _execute_log.info("%d ops, %s at %s", self._ops, self._cause, self._line)
        except Exception:
            _execute_log.exception("could not record an execution (%s at %s)", self._cause, self._line)

    def _profiler_event(self, result: Any) -> profiler_spans.DeviceEvent | None:
        what = "execute" if self._kind == "ExecuteTime" else "interpret"
        return profiler_spans.record_device_event(
            self._device, what, profiler_spans.program_label(self._line, self._ops), self._start, result
        )


def begin_execution(run: GraphRun, work: ProgramWork) -> ExecutionRecord:
    """Record the start of an execution; call it before the launch. ``work``: the FLOPs of the program."""
    graph, where = run.graph, current_site(run)
    device, cause, line = where
    ops = graph.node_count
    tracker.ran(where)
    if debug_analysis.debug_level() >= 2:
        debug_analysis.write_graph_block("Execution", cause, graph.key, len(graph.leaf_shapes), graph.root_count)
    span = (
        profiler_spans.span("launch", profiler_spans.program_label(line, ops))
        if profiler_spans.is_profiling()
        else profiler_spans.NOTHING
    )
    recorder.bindings().set_provenance(buffer_provenance.provenance_id("result", line))
    for listener in listeners:
        listener.on_launch(graph, device)
    step_timings.current_step().work += (work,)
    return ExecutionRecord(ops, where, "ExecuteTime", span)


def begin_interpretation(run: GraphRun, unstable: bool = False) -> ExecutionRecord:
    """Record the start of an interpreted graph, which is neither compiled nor launched.

    ``unstable``: its site records a new graph on every call.
    """
    where = current_site(run)
    recorder.bindings().set_provenance(buffer_provenance.provenance_id("result", where[2]))
    return ExecutionRecord(run.graph.node_count, where, "InterpretTime", unstable=unstable)


def on_op_by_op_done(device: int, start: int, eager: bool) -> None:
    """Record a graph whose ops were launched one by one, from ``start`` (ns of perf_counter)."""
    name = "EagerOpExecuteTime" if eager else "ExecuteChainedTime"
    metrics.sample(name, time.perf_counter_ns() - start, metrics.format_time)
    if profiler_spans.is_profiling():
        profiler_spans.record_device_event(
            device, "execute", f"{user_frames.user_line().rpartition('/')[2]} (op by op)", start
        )


def on_fallback(op: str, line: str) -> None:
    """Record the start of a CPU fallback of an op."""
    step_timings.begin_fallback(op, line)
    _fallback_log.info("%s runs on the CPU, at %s", op, line)
    for listener in listeners:
        listener.on_fallback(op, line)


def on_step_end(device: int) -> None:
    """Record the end of a step, after its barrier launched it."""
    step = step_timings.end_step(device_memory.take_step_peak(device))
    _memory_log.info("step %d: peak memory %d bytes on xla:%d", step.number, step.peak_bytes, device)
    try:
        metrics_file.save()
    except OSError as error:
        _memory_log.error("XLA_METRICS_FILE: could not write the report of step %d: %s", step.number, error)
    tracker.step_ended()
    for listener in listeners:
        listener.on_step_end(device)


def emit_step_log() -> None:
    """Write the heartbeat line of XLA_EMIT_STEPLOG to stderr."""
    if settings.XLA_EMIT_STEPLOG:
        print("torch_xla.core.xla_model::mark_step", file=sys.stderr, flush=True)


def wait(values: Sequence[jax.Array]) -> bool:
    """Wait for values, and count the time as waiting for the device.

    Returns False if a value was donated to another thread's program meanwhile. Such an array can no longer be waited
    for; waiting for the results of that program includes it.
    """
    with step_timings.timed_block("wait"), profiler_spans.span("wait"):
        try:
            jax.block_until_ready(values)  # for hundreds of arrays, half the time of waiting one by one
            all_live = True
        except RuntimeError:
            all_live = _wait_for_each(values)
    profiler_spans.flush_finished_events()
    return all_live


def _wait_for_each(values: Sequence[jax.Array]) -> bool:
    all_live = True
    for value in values:
        try:
            value.block_until_ready()
        except RuntimeError:
            if not value.is_deleted():
                raise
            all_live = False
    return all_live
