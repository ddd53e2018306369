"""FLOPs utilization and goodput: counts against torch's counter, devices, step callbacks, the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import torch_xla
from tests.support.helpers import run_script
from torch_xla._engine.aot.hardware_specs import find_chip
from torch_xla._engine.diagnostics.step_timings import InterpretationRecord, StepRecord
from torch_xla._engine.graph.flop_count import ProgramWork
from torch_xla.debug import StepSummary, utilization
from torch_xla.experimental import scan_layers

_MS = 1_000_000


def _flops_of_step(function: Callable[[], object]) -> dict[str, float]:
    """FLOPs by dtype of the compiled programs of one step; the first calls may be interpreted."""
    steps: list[StepRecord] = []
    utilization.step_timings.step_listeners.append(steps.append)
    try:
        for _ in range(4):
            kept = function()  # a result without a reference is not computed
            torch_xla.sync()
            del kept
    finally:
        utilization.step_timings.step_listeners.remove(steps.append)
    total: dict[str, float] = {}
    for program in steps[-1].work:
        for dtype, flops in program.flops.items():
            total[dtype] = total.get(dtype, 0.0) + flops
    return total


def _train(module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], object]:
    def step() -> None:
        module.zero_grad()
        module(*inputs).sum().backward()

    return step


CASES = {
    "linear": (lambda: nn.Linear(8, 16), [(4, 8)]),
    "conv": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), [(2, 4, 9, 9)]),
    "transposed conv": (lambda: nn.ConvTranspose1d(4, 6, 3), [(2, 4, 9)]),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), [(2, 5, 16)]),
}


@pytest.mark.parametrize("name", CASES)
def test_flops_equal_those_of_torch(name: str) -> None:
    make, shapes = CASES[name]
    module, inputs = make(), [torch.randn(shape) for shape in shapes]
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _train(module, inputs)()
    found = _flops_of_step(_train(module.to("xla"), [x.to("xla") for x in inputs]))
    assert set(found) == {"float32"}
    # The gradient of fused attention computes its scores again, as torch's formula for fused kernels counts.
    tolerance = 0.05 if name == "encoder layer" else 0.0
    assert found["float32"] == pytest.approx(counter.get_total_flops(), rel=tolerance)


def test_flops_by_dtype() -> None:
    a, b = torch.randn(8, 8, device="xla"), torch.randn(8, 8, device="xla", dtype=torch.bfloat16)
    assert _flops_of_step(lambda: (a @ a, b @ b)) == {"float32": 1024.0, "bfloat16": 1024.0}


def test_flops_of_loops() -> None:
    x = torch.randn(4, 8, device="xla")
    layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6)).to("xla")
    with torch.no_grad():
        assert _flops_of_step(lambda: scan_layers.scan_layers(layers, x)) == {"float32": 6 * 2.0 * 4 * 8 * 8}
        lstm, sequence = nn.LSTM(8, 16).to("xla"), torch.randn(10, 4, 8, device="xla")
        assert _flops_of_step(lambda: lstm(sequence)) == {"float32": 10 * 2.0 * 4 * 64 * (8 + 16)}


def test_step_callbacks_and_report() -> None:
    model, x = nn.Linear(256, 256).to("xla"), torch.randn(128, 256, device="xla")
    summaries: list[StepSummary] = []
    callback = summaries.append
    torch_xla.debug.add_step_callback(callback)
    torch_xla.debug.add_step_callback(callback)  # replaces it
    for _ in range(6):
        F.relu(model(x)).sum().backward()
        torch_xla.sync(wait=True)
    torch_xla.debug.remove_step_callback(callback)
    torch_xla.debug.remove_step_callback(callback)  # nothing to remove
    torch_xla.sync()
    assert len(summaries) == 6
    last = summaries[-1]
    assert last.flops == 2 * 2.0 * 128 * 256 * 256 and last.is_settled and last.wall_ms > 0
    assert last.utilization is not None and 0 < last.utilization < 2
    report = torch_xla.debug.report(last=3)
    found = report.as_dict()["utilization"]
    assert found["flops"] > 0 and found["utilization"] > 0 and 0 < found["goodput"] <= 1
    assert "FLOPs utilization: " in str(report) and "matmul of torch on this CPU. Goodput:" in " ".join(
        str(report).split()
    )
    assert "FLOPs utilization" in report.as_html()


def test_an_error_in_a_callback_is_raised_at_the_barrier() -> None:
    def fail(step: StepSummary) -> None:
        raise ValueError(f"step {step.number}")

    torch_xla.debug.add_step_callback(fail)
    try:
        with pytest.raises(ValueError, match=r"step \d+"):
            torch_xla.sync()
    finally:
        torch_xla.debug.remove_step_callback(fail)
    torch_xla.sync()


def test_flops_per_device_of_a_mesh() -> None:
    run_script(
        """
        import numpy as np
        import torch, torch_xla
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr
        xr.use_spmd()
        mesh = xs.Mesh(np.arange(4), (4,), ("data",))
        x, w = torch.randn(64, 32).to("xla"), torch.randn(32, 16).to("xla")
        xs.mark_sharding(x, mesh, ("data", None))
        steps = []
        torch_xla.debug.add_step_callback(steps.append)
        for _ in range(4):
            y = x @ w
            torch_xla.sync(wait=True)
        assert steps[-1].flops == 2 * 64 * 32 * 16 / 4, steps[-1]
    """,
        CPU_NUM_DEVICES="4",
    )


@pytest.mark.parametrize(("kind", "name"), [
    ("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5p", "v5p"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"),
    ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA L4", "l4"),
    ("fpga", None), ("", None),
])  # fmt: skip
def test_find_chip(kind: str, name: str | None) -> None:
    chip = find_chip(kind)
    assert (chip.name if chip else None) == name


class _Device:
    def __init__(self, platform: str, kind: str) -> None:
        self.platform, self.device_kind = platform, kind


def _steps(walls_ms: Sequence[float], first_use: int, input_ms: float, work: ProgramWork) -> list[StepRecord]:
    steps = []
    for number, wall in enumerate(walls_ms):
        step = StepRecord("main", 0, number, int(wall * _MS), {"input": int(input_ms * _MS)}, work=(work,))
        if number < first_use:
            step.interpretations = (InterpretationRecord(1, 1, "line", False),)
        steps.append(step)
    return steps


@pytest.mark.parametrize(("platform", "kind", "dtype", "expected"), [
    ("tpu", "TPU v4", "bfloat16", 0.5),  # 275 TFLOP/s
    ("gpu", "NVIDIA A100-SXM4-80GB", "bfloat16", 275 / 312 / 2),
    ("fpga", "fpga", "bfloat16", None),
    ("tpu", "TPU v4", "float64", None),
])  # fmt: skip
def test_utilization_and_goodput(
    monkeypatch: pytest.MonkeyPatch, platform: str, kind: str, dtype: str, expected: float | None
) -> None:
    monkeypatch.setattr(utilization.devices, "devices", lambda: [_Device(platform, kind)])
    work = ProgramWork({dtype: 2 * 275e12 * 0.005}, devices=2)  # 5 ms of a TPU v4 for each of two devices
    found: dict[str, Any] = utilization.summarize_utilization(_steps([85, 10, 10, 10, 10], 1, 2.0, work))
    assert found["flops"] == 275e12 * 0.005
    assert found["utilization"] == (None if expected is None else pytest.approx(expected))
    assert found["goodput"] == pytest.approx(5 * (10 - 2) / 125)
    assert ("unknown" in found["peak_source"]) == (kind == "fpga")


def test_no_utilization_without_programs() -> None:
    assert utilization.summarize_utilization([]) == {}
    assert utilization.summarize_utilization(_steps([10.0], 1, 0.0, ProgramWork({"float32": 1.0}))) == {}
