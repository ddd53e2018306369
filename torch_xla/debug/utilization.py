"""FLOPs utilization and goodput of steps, and callbacks at the end of each step.

utilization  FLOPs of the launched programs / (time * peak FLOP/s of the devices): model FLOPs utilization (MFU), or
             hardware FLOPs utilization where activation checkpointing recomputes
goodput      the time that as many settled steps take without waiting for input / the time of all steps
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.aot import hardware_specs
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.diagnostics import step_timings
from torch_xla._engine.graph.flop_count import ProgramWork

_NS = 1e9
_SIZE, _REPEATS = 1024, 5  # of the matmuls that measure the peak of a CPU
#: The names of dtypes in hardware specifications.
_SPEC_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


@dataclass(frozen=True)
class StepSummary:
    """One ended step, as callbacks get it.

    Attributes:
      number: the number of the step in this process, from 0.
      wall_ms: milliseconds since the end of the thread's previous step.
      flops: FLOPs of the programs launched in it, per device.
      utilization: share of the device's peak FLOP/s, from 0 to 1; None if unknown, or no program was launched.
      is_settled: whether it neither compiled nor ran a graph for the first time.
    """

    number: int
    wall_ms: float
    flops: float
    utilization: float | None
    is_settled: bool


_callbacks: dict[Callable[[StepSummary], object], Callable[[step_timings.StepRecord], None]] = {}


def add_step_callback(callback: Callable[[StepSummary], object]) -> None:
    """Call a function at the end of each step, on the thread that ends it. An error in it is raised there.

    Args:
      callback: takes a :class:`StepSummary`.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> numbers = []
      >>> callback = lambda step: numbers.append(step.is_settled)
      >>> torch_xla.debug.add_step_callback(callback)
      >>> torch_xla.sync()
      >>> torch_xla.debug.remove_step_callback(callback)
      >>> len(numbers)
      1
    """

    def listener(step: step_timings.StepRecord) -> None:
        callback(_summarize(step))

    remove_step_callback(callback)
    _callbacks[callback] = listener
    step_timings.step_listeners.append(listener)


def remove_step_callback(callback: Callable[[StepSummary], object]) -> None:
    """Stop calling a function at the end of each step; nothing happens if it is not called.

    Args:
      callback: the function given to :func:`add_step_callback`.
    """
    listener = _callbacks.pop(callback, None)
    if listener is not None:
        step_timings.step_listeners.remove(listener)


def _summarize(step: step_timings.StepRecord) -> StepSummary:
    seconds, ideal = step.wall / _NS, _seconds_at_peak(step.work)
    utilization = ideal / seconds if ideal and seconds else None
    return StepSummary(step.number, step.wall / 1e6, _flops_per_device(step.work), utilization, step.is_settled)


def summarize_utilization(steps: Sequence[step_timings.StepRecord]) -> dict[str, Any]:
    """Return utilization and goodput of steps, for a report; empty without a settled step that launched a program.

    ``flops``: per settled step and device. ``flops_per_second``: per device. ``peak_source``: where the peak is from.
    ``utilization`` is None if the peak is unknown.
    """
    settled = [step for step in steps if step.is_settled and step.wall]
    seconds = sum(step.wall for step in settled) / _NS
    flops = sum(_flops_per_device(step.work) for step in settled)
    if not flops:
        return {}
    ideals = [_seconds_at_peak(step.work) for step in settled]
    peak = _find_peak()
    return {
        "flops": flops / len(settled),
        "flops_per_second": flops / seconds,
        "utilization": None if any(ideal is None for ideal in ideals) else sum(i or 0.0 for i in ideals) / seconds,
        "peak_source": peak.source,
        "goodput": _compute_goodput(steps, settled),
    }


def _compute_goodput(steps: Sequence[step_timings.StepRecord], settled: Sequence[step_timings.StepRecord]) -> float:
    productive = statistics.median(step.wall - step.spent.get("input", 0) for step in settled)
    return min(1.0, productive * len(steps) / sum(step.wall for step in steps))


def _flops_per_device(work: Sequence[ProgramWork]) -> float:
    return sum(sum(program.flops.values()) / program.devices for program in work)


def _seconds_at_peak(work: Sequence[ProgramWork]) -> float | None:
    """Return the time that the programs take at the peak of each dtype; None if a peak is unknown."""
    total = 0.0
    for program in work:
        for dtype, flops in program.flops.items():
            peak = _find_peak().flops_per_second(dtype)
            if peak is None:
                return None
            total += flops / program.devices / peak
    return total


@dataclass(frozen=True)
class _Peak:
    """The peak of one device: FLOP/s by dtype from a specification, or measured when a dtype is first asked for."""

    source: str
    specified: Mapping[str, float] | None = None
    share: float = 1.0  # of the machine that one CPU device has

    def flops_per_second(self, dtype: str) -> float | None:
        if self.specified is None:
            return _measure_matmul(dtype) * self.share
        return self.specified.get(_SPEC_DTYPES.get(dtype, dtype))


def _find_peak() -> _Peak:
    device = devices.devices()[0]
    if capabilities.runs_in_process(device):
        return _Peak(f"measured {_SIZE} x {_SIZE} matmul of torch on this CPU", share=1 / devices.count())
    chip = hardware_specs.find_chip(device.device_kind)
    if chip is None:
        return _Peak(f"the peak of {device.device_kind!r} is unknown", {})
    return _Peak(f"peak of {chip.title}, {chip.source}", chip.flops)


@functools.cache
def _measure_matmul(dtype: str) -> float:
    """Return the FLOP/s of the fastest of some matmuls of torch on the CPU."""
    size = _SIZE if dtype == "float32" else _SIZE // 2  # other dtypes may have no fast kernel
    left, right = (torch.ones(size, size).to(getattr(torch, dtype)) for _ in range(2))
    torch.mm(left, right)
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    return 2.0 * size**3 / min(times)
