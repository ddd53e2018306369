"""Aggregate step timings, recompilations and memory into the data of a step report.

environment       script, command, date, versions, device, cpu (report_environment.py)
steps             count, mean_ms, median_ms, p95_ms, ops (recorded ops per step)
settled           count, mean_ms, median_ms, p95_ms of the settled steps, which run no graph for the first time
warm_up           count and ms of the first steps, which compile or run graphs for the first time
time              by category: ms_per_step and share over all steps; settled_ms and settled_share over settled steps
utilization       flops of a settled step, flops_per_second, utilization (0 to 1, None), peak_source, goodput (0 to 1);
                  utilization.py
device_busy_ms    time per step in which the device runs programs, also while Python runs
compilations      step, line, source, cause (sync reason), ops, ms, unexpected
recompilations    text, line, kind and times (number of compilations) of each unexpected cause
fallbacks, reads  line, source (and op), per_step, ms_per_step; settled_ms; most expensive first
not_compiled      count and ms of the interpreted graphs; the unstable lines, which record a new graph on every call
programs_on_disk  folder, bytes, limit (0: none), and the programs loaded, kept (stored) and removed by this process;
                  empty without a persistent compilation cache
events            by kind (compile, execute, ...): count, total_ms, p50_ms and p95_ms of all events of this process
memory            by device: bytes_used, bytes_limit, peak_bytes_used
bottlenecks       kind, level (problem, note or ok), text, advice (bottlenecks.py); the problems first
timeline          for each step: number, thread, start_ms, wall_ms, parts (ms by category), ops, peak_bytes, settled;
                  numbers of graphs compiled, recompiled (unexpected), interpreted, unstable; recompile_ms, unstable_ms
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import device_memory, metrics, step_timings
from torch_xla._engine.diagnostics.recompilation_tracker import tracker
from torch_xla._engine.execution import compile_policy
from torch_xla.debug import bottlenecks, report_environment, utilization

#: In chart order. _KINDS maps the kinds of step_timings to categories; all others are "other".
#: "first use" is the tracing of steps that are not settled, beyond that of a settled step: starting the device,
#: imports, shape inference of new ops.
CATEGORIES = ("input", "tracing", "first use", "compile", "interpreted", "execute", "transfers", "waiting",
              "fallbacks", "other")  # fmt: skip
_KINDS = {
    "input": "input", "CompileTime": "compile", "ExecuteTime": "execute", "InterpretTime": "interpreted",
    "wait": "waiting", "fallback": "fallbacks",
    "TransferToServerTime": "transfers", "TransferFromServerTime": "transfers",
    "TransferDeviceToDeviceTime": "transfers",
}  # fmt: skip
_WARM_UP = (
    4  # steps, at most: two interpretations (without and with optimizer state), the compilation, its second launch
)
_MS = 1e6


def step_breakdown(step: step_timings.StepRecord, tracing: float | None = None) -> dict[str, float]:
    """Return the milliseconds of a step by category, which add up to its wall time.

    ``tracing`` is the tracing time of a settled step in ms; more than that is first use, if the step is not settled.
    """
    found = dict.fromkeys(CATEGORIES, 0.0)
    for kind, duration in step.spent.items():
        found[_KINDS.get(kind, "other")] += duration / _MS
    found["tracing"] = step.tracing / _MS
    if tracing is not None and not step.is_settled:
        found["first use"] = max(0.0, found["tracing"] - tracing)
        found["tracing"] -= found["first use"]
    return found


def build_report(last: int | None) -> dict[str, Any]:
    """Return the data of a report over the ``last`` steps, or over all recorded steps."""
    steps = step_timings.steps()[-last:] if last else step_timings.steps()
    settled = [step for step in steps if step.is_settled]
    tracing = _settled_tracing(steps, settled)
    timeline = [_row(step, steps[0].start, tracing) for step in steps]
    data: dict[str, Any] = {
        "environment": report_environment.describe_process(),
        "steps": _step_statistics(steps) | {"ops": statistics.fmean(step.ops for step in steps) if steps else 0.0},
        "settled": _step_statistics(settled),
        "warm_up": _warm_up(timeline) if not steps or not steps[0].number else {"count": 0, "ms": 0.0},
        "time": _times(timeline),
        "utilization": utilization.summarize_utilization(steps),
        "device_busy_ms": _device_busy(steps[-1].number + 1 if steps else 0),
        "compilations": [_compilation(step, c) for step in steps for c in step.compilations],
        "recompilations": _recompilations(),
        "fallbacks": _line_entries(steps, settled, lambda step: step.fallbacks, ("op", "line")),
        "reads": _line_entries(
            steps, settled, lambda step: {(line,): stats for line, stats in step.reads.items()}, ("line",)
        ),
        "not_compiled": _not_compiled(),
        "programs_on_disk": _programs_on_disk(),
        "events": _event_times(),
        "memory": _memory_section(),
        "timeline": timeline,
    }
    data["bottlenecks"] = bottlenecks.find_bottlenecks(data)
    return data


def _settled_tracing(
    steps: Sequence[step_timings.StepRecord], settled: Sequence[step_timings.StepRecord]
) -> float | None:
    """Return the tracing time in ms of a typical settled step; if there is none, of the fastest of several steps."""
    if settled:
        return statistics.median(step.tracing for step in settled) / _MS
    return min(step.tracing for step in steps) / _MS if len(steps) > 1 else None


def _step_statistics(steps: Sequence[step_timings.StepRecord]) -> dict[str, float]:
    walls = sorted(step.wall / _MS for step in steps) or [0.0]
    return {
        "count": len(steps),
        "mean_ms": statistics.fmean(walls),
        "median_ms": statistics.median(walls),
        "p95_ms": walls[int(0.95 * len(walls))],
    }


def _warm_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the number and the time of the steps up to the first settled one, of the first _WARM_UP steps."""
    count = next((i for i, row in enumerate(rows) if row["settled"] or i == _WARM_UP), len(rows))
    return {"count": count, "ms": sum(row["wall_ms"] for row in rows[:count])}


def _times(timeline: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    def mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {name: sum(row["parts"][name] for row in rows) / max(len(rows), 1) for name in CATEGORIES}

    overall, steady = mean(timeline), mean([row for row in timeline if row["settled"]])
    total, steady_total = sum(overall.values()) or 1.0, sum(steady.values()) or 1.0
    return {
        name: {
            "ms_per_step": overall[name],
            "share": overall[name] / total,
            "settled_ms": steady[name],
            "settled_share": steady[name] / steady_total,
        }
        for name in CATEGORIES
    }


def _device_busy(steps: int) -> float:
    metric = metrics.metrics().get("ExecuteTime")
    if metric is None or not steps:
        return 0.0
    count, _, samples = metric.data()
    return statistics.fmean(value for _, value in samples) / _MS * count / steps


def _not_compiled() -> dict[str, Any]:
    metric = metrics.metrics().get("InterpretTime")
    if metric is None:
        return {}
    count, total, _ = metric.data()
    return {"count": count, "ms": total / _MS, "lines": compile_policy.unstable_lines()}


def _programs_on_disk() -> dict[str, Any]:
    files = persistent_cache.current_cache()
    if files is None:
        return {}
    counted = metrics.counters()
    return {
        "folder": str(files.folder), "bytes": files.size(), "limit": files.limit or 0,
        "loaded": counted.get("PersistentCacheHit", 0), "kept": counted.get("PersistentCacheWrite", 0),
        "removed": counted.get("PersistentCacheEvicted", 0),
    }  # fmt: skip


def _compilation(step: step_timings.StepRecord, found: step_timings.CompilationRecord) -> dict[str, Any]:
    return {
        "step": step.number, "line": found.line, "source": report_environment.source_line(found.line),
        "cause": found.cause, "ops": found.ops, "ms": found.duration / _MS, "unexpected": found.unexpected,
    }  # fmt: skip


def _recompilations() -> list[dict[str, Any]]:
    return [{"kind": e.kind, "line": e.line, "text": e.text, "times": n} for e, n in tracker.causes()]


def _line_entries(
    steps: Sequence[step_timings.StepRecord],
    settled: Sequence[step_timings.StepRecord],
    stats_of: Callable[[step_timings.StepRecord], Mapping[Any, step_timings.LineStats]],
    names: tuple[str, ...],
) -> list[dict[str, Any]]:
    sums, steady = (_sum_by_line([stats_of(step) for step in part]) for part in (steps, settled))
    rows = []
    for key, total in sums.items():
        row: dict[str, Any] = dict(zip(names, key, strict=True))
        row["source"] = report_environment.source_line(row["line"])
        row["per_step"], row["ms_per_step"] = total.count / len(steps), total.duration / _MS / len(steps)
        row["settled_ms"] = steady[key].duration / _MS / len(settled) if key in steady else 0.0
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row["ms_per_step"]))


def _sum_by_line(tables: Sequence[Mapping[Any, step_timings.LineStats]]) -> dict[Any, step_timings.LineStats]:
    sums: dict[Any, step_timings.LineStats] = {}
    for table in tables:
        for key, stats in table.items():
            total = sums.setdefault(key, step_timings.LineStats())
            total.count += stats.count
            total.duration += stats.duration
    return sums


#: Metric -> its name in the report. "execute" is the time on the device.
_EVENTS = {
    "CompileTime": "compile", "ExecuteTime": "execute", "InterpretTime": "interpret",
    "TransferToServerTime": "transfer to device", "TransferFromServerTime": "transfer from device",
}  # fmt: skip


def _event_times() -> dict[str, dict[str, float]]:
    rows = {}
    found = metrics.metrics()
    for name, title in _EVENTS.items():
        if name in found:
            count, total, samples = found[name].data()
            values = sorted(value / _MS for _, value in samples)
            p50, p95 = (values[int(share * len(values))] for share in (0.5, 0.95))
            rows[title] = {"count": count, "total_ms": total / _MS, "p50_ms": p50, "p95_ms": p95}
    return rows


def _memory_section() -> dict[str, dict[str, int]]:
    if not devices.backend_started():
        return {}
    return {f"xla:{i}": device_memory.memory_info(i) for i in range(devices.count())}


def _row(step: step_timings.StepRecord, origin: int, tracing: float | None) -> dict[str, Any]:
    recompiled = [c.duration / _MS for c in step.compilations if c.unexpected]
    unstable = [run.duration / _MS for run in step.interpretations if run.unstable]
    return {
        "number": step.number,
        "thread": step.thread,
        "start_ms": (step.start - origin) / _MS,
        "wall_ms": step.wall / _MS,
        "parts": step_breakdown(step, tracing),
        "ops": step.ops,
        "peak_bytes": step.peak_bytes,
        "settled": step.is_settled,
        "compiled": len(step.compilations),
        "recompiled": len(recompiled),
        "recompile_ms": sum(recompiled),
        "interpreted": len(step.interpretations),
        "unstable": len(unstable),
        "unstable_ms": sum(unstable),
    }
