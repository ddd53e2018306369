"""Find the bottlenecks of a step report: one sentence for each, with advice.

The thresholds are shares of a step's time, and events per step, above which a bottleneck is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_COMPILE_SHARE = 0.2  # of all time after the first two steps
_INPUT_SHARE = 0.3
_TRANSFER_SHARE = 0.3
_TRACING_SHARE = 0.5
_DEVICE_SHARE = 0.5  # of waiting and execute together
_FALLBACK_SHARE = 0.05
_PER_STEP = 0.5  # fallbacks and reads: one in every second step
_MEMORY_SHARE = 0.9
_WARM_UP = 2  # steps

Bottleneck = dict[str, str]


def find_bottlenecks(data: dict[str, Any]) -> list[Bottleneck]:
    """Return the bottlenecks of a report, or a statement that there is none."""
    if not data["steps"]["count"]:
        return [_bottleneck("no steps", "No step has ended.", "End each step with torch_xla.sync().")]
    found = [
        *_compile_bound(data),
        *_host_or_device_bound(data),
        *_fallbacks(data),
        *_blocking_reads(data),
        *_memory_pressure(data),
    ]
    return found or [_bottleneck("balanced", "No single category takes most of a step's time.", "")]


def _bottleneck(kind: str, text: str, advice: str) -> Bottleneck:
    return {"kind": kind, "text": text, "advice": advice}


def _compile_bound(data: dict[str, Any]) -> Iterator[Bottleneck]:
    rows = data["timeline"][_WARM_UP:]
    compiling = sum(row["parts"]["compile"] for row in rows)
    times = sum(row["compiled"] for row in rows)
    if times and compiling >= _COMPILE_SHARE * sum(row["wall_ms"] for row in rows):
        yield _bottleneck(
            "compile-bound",
            f"compile-bound: {times} compilations in the last {len(rows)} steps took {_ms(compiling)} of "
            f"{_ms(sum(row['wall_ms'] for row in rows))}.",
            "The recompilations below list what changed; a step with constant shapes and ops compiles once.",
        )


def _host_or_device_bound(data: dict[str, Any]) -> Iterator[Bottleneck]:
    if not data["settled"]["count"]:
        return
    time = data["time"]
    share = {name: row["settled_share"] for name, row in time.items()}
    ms = {name: row["settled_ms"] for name, row in time.items()}
    step = sum(ms.values())
    ops = data["steps"]["ops"]
    if share["input"] >= _INPUT_SHARE:
        yield _bottleneck(
            "input-bound",
            f"input-bound: waiting for the DataLoader takes {_ms(ms['input'])} of the {_ms(step)} of a step.",
            "Use worker processes (num_workers), faster transforms, and MpDeviceLoader, which prefetches batches.",
        )
    if share["transfers"] >= _TRANSFER_SHARE:
        yield _bottleneck(
            "transfer-bound",
            f"transfer-bound: copies between CPU and device take {_ms(ms['transfers'])} of the {_ms(step)} of a step.",
            "Transfer few large tensors rather than many small ones, and create constants on the device.",
        )
    if share["tracing"] >= _TRACING_SHARE:
        each = f", {1000 * ms['tracing'] / ops:.1f} µs per op" if ops else ""
        yield _bottleneck(
            "tracing-bound",
            f"tracing-bound: Python and recording take {_ms(ms['tracing'])} of the {_ms(step)} of a step "
            f"({ops:.0f} ops{each}).",
            "Use larger batches, which give the device more work per op; move CPU work to the DataLoader.",
        )
    if share["waiting"] + share["execute"] >= _DEVICE_SHARE:
        yield _bottleneck(
            "device-bound",
            f"device-bound: {_ms(ms['waiting'] + ms['execute'])} of the {_ms(step)} of a step are spent running "
            "programs and waiting for their values.",
            "This is the expected state: use bfloat16, a larger batch or a faster device to go faster.",
        )


def _fallbacks(data: dict[str, Any]) -> Iterator[Bottleneck]:
    step = data["steps"]["mean_ms"]
    for row in data["fallbacks"]:
        if row["per_step"] >= _PER_STEP or row["ms_per_step"] >= _FALLBACK_SHARE * step:
            yield _bottleneck(
                "fallback",
                f"{_times(row['per_step'], 'fallback')} per step at {row['line']}: {row['op']} runs on the CPU and "
                f"takes {_ms(row['ms_per_step'])}, including copies.",
                "Use an op whose result shape does not depend on values, or move it out of the step.",
            )


def _blocking_reads(data: dict[str, Any]) -> Iterator[Bottleneck]:
    for row in data["reads"]:
        if row["per_step"] >= _PER_STEP:
            yield _bottleneck(
                "read",
                f"{_times(row['per_step'], 'value')} read per step at {row['line']}: Python waits there for the "
                f"device, {_ms(row['ms_per_step'])} per step.",
                "Keep it as a tensor, and read it only every few steps, after torch_xla.sync().",
            )


def _memory_pressure(data: dict[str, Any]) -> Iterator[Bottleneck]:
    for device, info in data["memory"].items():
        if info["peak_bytes_used"] >= _MEMORY_SHARE * info["bytes_limit"]:
            yield _bottleneck(
                "memory",
                f"memory: {device} used up to {100 * info['peak_bytes_used'] / info['bytes_limit']:.0f} % of its "
                "memory.",
                "torch_xla.debug.memory.summary() lists the live buffers by the line that created them.",
            )


def _times(per_step: float, noun: str) -> str:
    number = f"{per_step:.0f}" if abs(per_step - round(per_step)) < 0.05 else f"{per_step:.1f}"
    return f"{number} {noun}{'' if number == '1' else 's'}"


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"
