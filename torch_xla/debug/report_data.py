"""The numbers of a report: what the journal's steps add up to.

steps        count, mean_ms, median_ms, p90_ms, ops (recorded ops a step)
settled      count of the steps without a compilation: what training looks like once everything is compiled
time         by category: ms_per_step and share, over all steps; settled_ms and settled_share over the settled ones
compilations step, line, cause, ops, ms of each
recompilations  text, line, kind and times of each unexpected cause
fallbacks, reads  line (and op), per_step, ms_per_step; most expensive first
not_compiled count and ms of the graphs that were interpreted; the lines that make another one each time
programs_on_disk  folder, bytes, limit (0: none), loaded, kept and removed (by this process); or empty
memory       by device: bytes_used, bytes_limit, peak_bytes_used
verdicts     kind, text, advice; see verdicts.py
timeline     for each step: number, thread, start_ms, wall_ms, parts (ms by category), ops, peak_bytes, compiled
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import journal, memory, metrics
from torch_xla._engine.diagnostics.recompilation import watcher
from torch_xla._engine.execution import compile_cache, storms
from torch_xla.debug import verdicts

#: In the order of charts. What belongs to which, by the journal's kinds; the rest is other.
CATEGORIES = ("input", "tracing", "compile", "execute", "transfers", "waiting", "fallbacks", "other")
_KINDS = {
    "input": "input", "CompileTime": "compile", "ExecuteTime": "execute", "InterpretTime": "execute",
    "wait": "waiting", "fallback": "fallbacks",
    "TransferToServerTime": "transfers", "TransferFromServerTime": "transfers",
    "TransferDeviceToDeviceTime": "transfers",
}  # fmt: skip
_MS = 1e6


def parts(step: journal.Step) -> dict[str, float]:
    """The milliseconds of a step by category; they add up to its wall time."""
    found = dict.fromkeys(CATEGORIES, 0.0)
    for kind, duration in step.spent.items():
        found[_KINDS.get(kind, "other")] += duration / _MS
    found["tracing"] = step.tracing / _MS
    return found


def collect(last: int | None) -> dict[str, Any]:
    """The dict of a report over the ``last`` steps."""
    steps = journal.steps()[-last:] if last else journal.steps()
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
        "fallbacks": _places([step.fallbacks for step in steps], ("op", "line")),
        "reads": _places([{(line,): place for line, place in step.reads.items()} for step in steps], ("line",)),
        "not_compiled": _not_compiled(),
        "programs_on_disk": _programs_on_disk(),
        "memory": _memory(),
        "timeline": [_row(step, steps[0].start) for step in steps],
    }
    data["verdicts"] = verdicts.of(data)
    return data


def _times(steps: Sequence[journal.Step], settled: Sequence[journal.Step]) -> dict[str, dict[str, float]]:
    def mean(of: Sequence[journal.Step]) -> dict[str, float]:
        rows = [parts(step) for step in of]
        return {name: sum(row[name] for row in rows) / max(len(rows), 1) for name in CATEGORIES}

    every, calm = mean(steps), mean(settled)
    total, calm_total = sum(every.values()) or 1.0, sum(calm.values()) or 1.0
    return {
        name: {
            "ms_per_step": every[name],
            "share": every[name] / total,
            "settled_ms": calm[name],
            "settled_share": calm[name] / calm_total,
        }
        for name in CATEGORIES
    }


def _not_compiled() -> dict[str, Any]:
    metric = metrics.metrics().get("InterpretTime")
    if metric is None:
        return {}
    count, total, _ = metric.data()
    return {"count": count, "ms": total / _MS, "lines": storms.lines()}


def _programs_on_disk() -> dict[str, Any]:
    files = compile_cache.in_use()
    if files is None:
        return {}
    counted = metrics.counters()
    return {
        "folder": str(files.folder), "bytes": files.size(), "limit": files.limit or 0,
        "loaded": counted.get("PersistentCacheHit", 0), "kept": counted.get("PersistentCacheWrite", 0),
        "removed": counted.get("PersistentCacheEvicted", 0),
    }  # fmt: skip


def _compilation(step: journal.Step, found: journal.Compilation) -> dict[str, Any]:
    return {
        "step": step.number, "line": found.line, "cause": found.cause, "ops": found.ops, "ms": found.duration / _MS,
    }  # fmt: skip


def _recompilations() -> list[dict[str, Any]]:
    return [{"kind": e.kind, "line": e.line, "text": e.text, "times": n} for e, n in watcher.causes()]


def _places(tables: Sequence[Mapping[Any, journal.Place]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    sums: dict[Any, journal.Place] = {}
    for table in tables:
        for key, place in table.items():
            total = sums.setdefault(key, journal.Place())
            total.count += place.count
            total.duration += place.duration
    rows = [
        dict(zip(names, key, strict=True))
        | {"per_step": total.count / len(tables), "ms_per_step": total.duration / _MS / len(tables)}
        for key, total in sums.items()
    ]
    return sorted(rows, key=lambda row: -float(row["ms_per_step"]))


def _memory() -> dict[str, dict[str, int]]:
    if not devices.started():
        return {}
    return {f"xla:{i}": memory.info(i) for i in range(devices.count())}


def _row(step: journal.Step, origin: int) -> dict[str, Any]:
    return {
        "number": step.number,
        "thread": step.thread,
        "start_ms": (step.start - origin) / _MS,
        "wall_ms": step.wall / _MS,
        "parts": parts(step),
        "ops": step.ops,
        "peak_bytes": step.peak_bytes,
        "compiled": len(step.compilations),
    }
