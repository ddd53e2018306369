"""Aggregate step timings, recompilations and memory into the data of a step report.

steps             count, mean_ms, median_ms, p90_ms, ops (recorded ops per step)
settled           count of the steps without a compilation: the steady state of training
time              by category: ms_per_step and share over all steps; settled_ms and settled_share over settled steps
compilations      step, line, cause (sync reason), ops and ms of each
recompilations    text, line, kind and times (number of compilations) of each unexpected cause
fallbacks, reads  line (and op), per_step, ms_per_step; most expensive first
not_compiled      count and ms of the interpreted graphs; the unstable lines, which record a new graph on every call
programs_on_disk  folder, bytes, limit (0: none), and the programs loaded, kept (stored) and removed by this process;
                  empty without a persistent compilation cache
memory            by device: bytes_used, bytes_limit, peak_bytes_used
bottlenecks       kind, text, advice (bottlenecks.py)
timeline          for each step: number, thread, start_ms, wall_ms, parts (ms by category), ops, peak_bytes, compiled
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import device_memory, metrics, step_timings
from torch_xla._engine.diagnostics.recompilation_tracker import tracker
from torch_xla._engine.execution import compile_policy
from torch_xla.debug import bottlenecks

#: In chart order. _KINDS maps the kinds of step_timings to categories; all others are "other".
CATEGORIES = ("input", "tracing", "compile", "execute", "transfers", "waiting", "fallbacks", "other")
_KINDS = {
    "input": "input", "CompileTime": "compile", "ExecuteTime": "execute", "InterpretTime": "execute",
    "wait": "waiting", "fallback": "fallbacks",
    "TransferToServerTime": "transfers", "TransferFromServerTime": "transfers",
    "TransferDeviceToDeviceTime": "transfers",
}  # fmt: skip
_MS = 1e6


def step_breakdown(step: step_timings.StepRecord) -> dict[str, float]:
    """Return the milliseconds of a step by category, which add up to its wall time."""
    found = dict.fromkeys(CATEGORIES, 0.0)
    for kind, duration in step.spent.items():
        found[_KINDS.get(kind, "other")] += duration / _MS
    found["tracing"] = step.tracing / _MS
    return found


def build_report(last: int | None) -> dict[str, Any]:
    """Return the data of a report over the ``last`` steps, or over all recorded steps."""
    steps = step_timings.steps()[-last:] if last else step_timings.steps()
    settled = [step for step in steps if not step.compilations]
    walls = [step.wall / _MS for step in steps]
    data: dict[str, Any] = {
        "steps": {
            "count": len(steps),
            "mean_ms": statistics.fmean(walls) if walls else 0.0,
            "median_ms": statistics.median(walls) if walls else 0.0,
            "p90_ms": sorted(walls)[int(0.9 * len(walls))] if walls else 0.0,
            "ops": statistics.fmean(step.ops for step in steps) if steps else 0.0,
        },
        "settled": {"count": len(settled)},
        "time": _times(steps, settled),
        "compilations": [_compilation(step, c) for step in steps for c in step.compilations],
        "recompilations": _recompilations(),
        "fallbacks": _line_entries([step.fallbacks for step in steps], ("op", "line")),
        "reads": _line_entries([{(line,): stats for line, stats in step.reads.items()} for step in steps], ("line",)),
        "not_compiled": _not_compiled(),
        "programs_on_disk": _programs_on_disk(),
        "memory": _memory_section(),
        "timeline": [_row(step, steps[0].start) for step in steps],
    }
    data["bottlenecks"] = bottlenecks.find_bottlenecks(data)
    return data


def _times(
    steps: Sequence[step_timings.StepRecord], settled: Sequence[step_timings.StepRecord]
) -> dict[str, dict[str, float]]:
    def mean(records: Sequence[step_timings.StepRecord]) -> dict[str, float]:
        rows = [step_breakdown(step) for step in records]
        return {name: sum(row[name] for row in rows) / max(len(rows), 1) for name in CATEGORIES}

    overall, steady = mean(steps), mean(settled)
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
        "step": step.number, "line": found.line, "cause": found.cause, "ops": found.ops, "ms": found.duration / _MS,
    }  # fmt: skip


def _recompilations() -> list[dict[str, Any]]:
    return [{"kind": e.kind, "line": e.line, "text": e.text, "times": n} for e, n in tracker.causes()]


def _line_entries(
    tables: Sequence[Mapping[Any, step_timings.LineStats]], names: tuple[str, ...]
) -> list[dict[str, Any]]:
    sums: dict[Any, step_timings.LineStats] = {}
    for table in tables:
        for key, stats in table.items():
            total = sums.setdefault(key, step_timings.LineStats())
            total.count += stats.count
            total.duration += stats.duration
    rows = [
        dict(zip(names, key, strict=True))
        | {"per_step": total.count / len(tables), "ms_per_step": total.duration / _MS / len(tables)}
        for key, total in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["ms_per_step"]))


def _memory_section() -> dict[str, dict[str, int]]:
    if not devices.backend_started():
        return {}
    return {f"xla:{i}": device_memory.memory_info(i) for i in range(devices.count())}


def _row(step: step_timings.StepRecord, origin: int) -> dict[str, Any]:
    return {
        "number": step.number,
        "thread": step.thread,
        "start_ms": (step.start - origin) / _MS,
        "wall_ms": step.wall / _MS,
        "parts": step_breakdown(step),
        "ops": step.ops,
        "peak_bytes": step.peak_bytes,
        "compiled": len(step.compilations),
    }
