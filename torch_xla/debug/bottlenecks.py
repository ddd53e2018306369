"""Find the bottlenecks of a step report: one sentence for each, with advice.

    level     meaning                                                       example
    problem   costs time or memory, and can be avoided in the script        recompilations, a slow data loader
    note      where the time of a healthy step goes, and how to change it   device-bound, tracing-bound
    ok        nothing to do                                                 no problem found, warm-up

The thresholds are shares of a step's time, and events per step, above which a bottleneck is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from torch_xla._engine.diagnostics import fallback_warning

_COMPILE_SHARE = 0.2  # of all time after the warm-up
_MOST_RECOMPILED = 2  # recompilations that are no problem: a smaller last batch, an evaluation
_INTERPRETED_SHARE = 0.1  # of all time after the warm-up
_INPUT_SHARE = 0.3
_TRANSFER_SHARE = 0.3
_LEAST_MS = 10.0  # of input and transfers per step; below, they are notes: small steps have a few ms of each
_TRACING_SHARE = 0.5
_HOST_MS, _HOST_US = 5.0, 200.0  # per step and per op: recording takes less, the rest is other Python code
_DEVICE_SHARE = 0.5  # of waiting and execute together
_FALLBACK_SHARE = 0.05
_READ_SHARE = 0.1
_MOST_READS = 2.0  # per step
_PER_STEP = 0.5  # fallbacks and reads: one in every second step
_MEMORY_SHARE = 0.9

Bottleneck = dict[str, str]


def find_bottlenecks(data: dict[str, Any]) -> list[Bottleneck]:
    """Return the bottlenecks of a report, problems first; without a problem, the first entry says so."""
    if not data["steps"]["count"]:
        return [_bottleneck("no steps", "ok", "No step has ended.", "End each step with torch_xla.sync().")]
    found = [
        *_interpreted_graphs(data),
        *_compile_bound(data),
        *_host_or_device_bound(data),
        *_fallbacks(data),
        *_blocking_reads(data),
        *_memory_pressure(data),
    ]
    problems = [entry for entry in found if entry["level"] == "problem"]
    notes = [entry for entry in found if entry["level"] != "problem"]
    return [*(problems or [_healthy(data)]), *notes, *_warm_up(data)]


def _bottleneck(kind: str, level: str, text: str, advice: str = "") -> Bottleneck:
    return {"kind": kind, "level": level, "text": text, "advice": advice}


def _healthy(data: dict[str, Any]) -> Bottleneck:
    steps, settled = data["steps"]["count"], data["settled"]
    if not settled["count"]:
        return _bottleneck(
            "warming up", "ok", f"no problem found so far: each of the {steps} steps ran a graph for the first time.",
            "Report again after more steps.",
        )  # fmt: skip
    return _bottleneck(
        "healthy", "ok", f"no problem found: {settled['count']} of {steps} steps ran known programs only, "
        f"{_ms(settled['median_ms'])} each (median).",
    )  # fmt: skip


def _warm_up(data: dict[str, Any]) -> Iterator[Bottleneck]:
    count = data["warm_up"]["count"]
    if not count:
        return
    parts = {name: sum(row["parts"][name] for row in data["timeline"][:count]) for name in _FIRST}
    times = ", ".join(f"{name} {_ms(ms)}" for name, ms in parts.items() if ms >= 1)
    which = "step" if count == 1 else f"{count} steps"
    text = f"warm-up: the first {which} took {_ms(data['warm_up']['ms'])}{f' ({times})' if times else ''}."
    yield _bottleneck("warm-up", "ok", text)


_FIRST = ("compile", "interpreted", "first use")


def _settled_rows(data: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Return the steps after the warm-up."""
    rows: Sequence[dict[str, Any]] = data["timeline"][data["warm_up"]["count"] :]
    return rows


def _interpreted_graphs(data: dict[str, Any]) -> Iterator[Bottleneck]:
    rows = _settled_rows(data)
    wall = sum(row["wall_ms"] for row in rows)
    count, spent = (sum(row[name] for row in rows) for name in ("unstable", "unstable_ms"))
    first = sum(row["interpreted"] - row["unstable"] for row in rows)
    if first >= _PER_STEP * len(rows):  # every step runs a graph for the first time, at several lines
        count, spent = count + first, sum(row["parts"]["interpreted"] for row in rows)
    if not count or spent < _INTERPRETED_SHARE * wall:
        return
    lines = data["not_compiled"].get("lines", [])
    where = f"; the graph changes on every call at {', '.join(lines[:3])}" if lines else ""
    yield _bottleneck(
        "interpreted",
        "problem",
        f"interpreted: {count} graph{_plural(count)} ran op by op, {_ms(spent)} of {_ms(wall)}{where}.",
        "Keep shapes and ops the same in every step (pad; torch.where instead of x[mask]): one compiled program runs "
        "them. See: torch-xla explain changing-shapes",
    )


def _compile_bound(data: dict[str, Any]) -> Iterator[Bottleneck]:
    rows = _settled_rows(data)
    wall = sum(row["wall_ms"] for row in rows)
    times, spent = (sum(row[name] for row in rows) for name in ("recompiled", "recompile_ms"))
    if times > _MOST_RECOMPILED and spent >= _COMPILE_SHARE * wall:
        yield _bottleneck(
            "compile-bound",
            "problem",
            f"compile-bound: {times} recompilations in {len(rows)} steps took {_ms(spent)} of {_ms(wall)}.",
            "The unexpected compilations below list what changed; a step with constant shapes and ops compiles once. "
            "See: torch-xla explain recompilation",
        )


def _host_or_device_bound(data: dict[str, Any]) -> Iterator[Bottleneck]:
    if not data["settled"]["count"]:
        return
    time = data["time"]
    share = {name: row["settled_share"] for name, row in time.items()}
    ms = {name: row["settled_ms"] for name, row in time.items()}
    step = _ms(sum(ms.values()))
    if share["input"] >= _INPUT_SHARE:
        yield _bottleneck(
            "input-bound",
            "problem" if ms["input"] >= _LEAST_MS else "note",
            f"input-bound: waiting for the DataLoader takes {_ms(ms['input'])} of the {step} of a step.",
            "Use worker processes (num_workers), faster transforms, and MpDeviceLoader, which prefetches batches.",
        )
    if share["transfers"] >= _TRANSFER_SHARE:
        yield _bottleneck(
            "transfer-bound",
            "problem" if _median_ms(data, "transfers") >= _LEAST_MS else "note",
            f"transfer-bound: copies between CPU and device take {_ms(ms['transfers'])} of the {step} of a step.",
            "Transfer few large tensors rather than many small ones, and create constants on the device.",
        )
    total = sum(ms.values())
    device = max(ms["waiting"] + ms["execute"], min(total, data["device_busy_ms"]))
    device_bound = device >= _DEVICE_SHARE * total
    # Python is slow beside a busy CPU device. New shapes are traced slowly: the result shapes of ops are not cached.
    if share["tracing"] >= _TRACING_SHARE and not device_bound and not any(_interpreted_graphs(data)):
        yield _tracing_bound(ms["tracing"], data["steps"]["ops"], step)
    if device_bound:
        yield _bottleneck(
            "device-bound",
            "note",
            f"device-bound: the device runs compiled programs for {_ms(device)} of the {step} of a step.",
            "This is the expected state: use bfloat16, a larger batch or a faster device to go faster.",
        )


def _median_ms(data: dict[str, Any], category: str) -> float:
    """Return the median over settled steps: a busy machine delays some copies by many times their time."""
    return float(statistics.median(row["parts"][category] for row in data["timeline"] if row["settled"]))


def _tracing_bound(spent: float, ops: float, step: str) -> Bottleneck:
    each = 1000 * spent / max(ops, 1)
    if spent >= _HOST_MS and each >= _HOST_US:
        return _bottleneck(
            "host-bound",
            "problem",
            f"host-bound: Python code takes {_ms(spent)} of the {step} of a step; recording its {ops:.0f} ops is a "
            "small part of it.",
            "Move preprocessing, logging and metrics out of the step, for example to the data loader. See: "
            "torch_xla.debug.profiler, py-spy",
        )
    return _bottleneck(
        "tracing-bound",
        "note",
        f"tracing-bound: Python and recording take {_ms(spent)} of the {step} of a step ({ops:.0f} ops, {each:.1f} µs "
        "per op).",
        "torch_xla.compile(step, replay=True) launches the step without recording it again; a larger batch gives the "
        "device more work per op. See: torch-xla explain replay",
    )


def _fallbacks(data: dict[str, Any]) -> Iterator[Bottleneck]:
    step = data["steps"]["mean_ms"]
    for row in data["fallbacks"]:
        if row["per_step"] >= _PER_STEP or row["ms_per_step"] >= _FALLBACK_SHARE * step:
            page = "data-dependent-shape" if fallback_warning.is_data_dependent(row["op"]) else "cpu-fallback"
            yield _bottleneck(
                "fallback",
                "problem",
                f"fallback: {row['op']} runs on the CPU, {_times(row['per_step'], 'call')} per step at {row['line']}, "
                f"{_ms(row['ms_per_step'])} per step including copies.",
                "Use an op whose result shape does not depend on values, or move it out of the step. "
                f"See: torch-xla explain {page}",
            )


def _blocking_reads(data: dict[str, Any]) -> Iterator[Bottleneck]:
    step = data["settled"]["mean_ms"] if data["settled"]["count"] else data["steps"]["mean_ms"]
    for row in data["reads"]:
        if row["per_step"] < _PER_STEP:
            continue
        spent = row["settled_ms"] if data["settled"]["count"] else row["ms_per_step"]
        costs = row["per_step"] >= _MOST_READS or spent >= _READ_SHARE * step
        yield _bottleneck(
            "read",
            "problem" if costs else "note",
            f"value read: {_times(row['per_step'], 'value')} read per step at {row['line']}; Python waits there for "
            f"the device, {_ms(spent)} per step.",
            "Keep it as a tensor, and read it only every few steps, after torch_xla.sync(). "
            "See: torch-xla explain value-read",
        )


def _memory_pressure(data: dict[str, Any]) -> Iterator[Bottleneck]:
    for device, info in data["memory"].items():
        if info["peak_bytes_used"] >= _MEMORY_SHARE * info["bytes_limit"]:
            yield _bottleneck(
                "memory",
                "problem",
                f"memory: {device} used up to {100 * info['peak_bytes_used'] / info['bytes_limit']:.0f} % of its "
                "memory.",
                "torch_xla.debug.memory.summary() lists the live buffers by the line that created them. "
                "See: torch-xla explain out-of-memory",
            )


def _times(per_step: float, noun: str) -> str:
    number = f"{per_step:.0f}" if abs(per_step - round(per_step)) < 0.05 else f"{per_step:.1f}"
    return f"{number} {noun}{'' if number == '1' else 's'}"


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"
