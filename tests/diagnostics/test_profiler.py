"""Profiles: annotations, steps and op names in jax's trace files; recording and programs in torch.profiler."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from torch.autograd import profiler_legacy

import torch_xla
from tests.support.helpers import counts, run_script
from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import completion, metrics, profiler_spans
from torch_xla._engine.recorder import source_info
from torch_xla.debug import profiler as xp

#: torch 2.11 warns in the first profile of a process.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of the only profile in a folder, in the format of Perfetto and TensorBoard."""
    (file,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    with gzip.open(file) as content:
        found: list[dict[str, Any]] = json.load(content)["traceEvents"]
    return [event for event in found if event.get("ph") == "X"]


def test_trace_has_annotations_steps_and_ops(tmp_path: Path) -> None:
    x = torch.ones(64, 64, device="xla")

    @xp.trace_me("forward")
    def forward() -> torch.Tensor:
        """Doc."""
        return (x @ x).exp()

    assert (forward.__name__, forward.__doc__) == ("forward", "Doc.")
    forward()
    torch_xla.sync(wait=True)
    xp.start_trace(tmp_path)
    with counts() as moved:
        for i in range(3):
            with xp.StepTrace("train", step_num=i), xp.Trace("build", size=64):
                y = forward()
    torch_xla.sync(wait=True)
    xp.stop_trace()
    assert moved.only("MarkStep", "ExecuteTime") == {"MarkStep": 3, "ExecuteTime": 3}
    assert y.shape == (64, 64)
    found = events(tmp_path)
    steps = [event for event in found if event["name"] == "train"]
    assert [event["args"]["step_num"] for event in steps] == ["0", "1", "2"]
    built = [event for event in found if event["name"] == "build"]
    assert [event["args"]["size"] for event in built] == ["64"] * 3
    for outer, inner in zip(steps, built, strict=True):
        assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert sum(event["name"] == "forward" for event in found) == 3
    assert any(event["name"].startswith("dot") for event in found), "no device op"
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_a_step_that_raises_has_no_barrier() -> None:
    with counts() as moved, pytest.raises(ZeroDivisionError), xp.StepTrace("train"):
        raise ZeroDivisionError
    assert moved["MarkStep"] == 0


def test_trace_names_the_scope_of_ops() -> None:
    source_info.set_capture(True)
    try:
        with xp.Trace("data"):
            module = torch.nn.Sequential(torch.nn.Tanh())
            x = module(torch.ones(2, device="xla"))
            y = x + 1
        z = y * 3
    finally:
        source_info.set_capture(False)
    found = [source_info.origin_from_id(node.origin) for node in recorder.bindings().nodes_of([x, y, z])]
    assert [o.scope if o else None for o in found] == ["data/Sequential/0", "data", ""]


def test_marked_step_is_of_the_thread() -> None:
    xp.set_tracer_marked_step(False)
    assert xp.get_tracer_marked_step() is False
    with xp.StepTrace("train"):
        assert xp.get_tracer_marked_step() is True
    xp.set_tracer_marked_step(False)


def test_torch_profiler_shows_recording() -> None:
    x = torch.ones(4, 4, device="xla")
    (x @ x).relu()  # the first shape inference calls torch's meta functions, which the profile would show
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        with torch.profiler.record_function("my part"):
            (x @ x).relu()
        torch_xla.sync()
    shown = {event.key: event for event in profile.key_averages()}
    assert {"my part", "aten::mm", "aten::relu"} <= shown.keys()
    assert shown["aten::mm"].count == 1
    assert 0 < shown["aten::mm"].cpu_time_total < shown["my part"].cpu_time_total


def products(x: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        x = (x @ x).tanh()
    return x


def test_torch_profiler_shows_programs() -> None:
    """One row per program and line: compiled once, launched and executed per iteration, on the device's thread."""
    x = torch.randn(300, 300, device="xla")
    torch_xla.sync(wait=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            with torch.profiler.record_function("step"):
                y = products(x, 20)
                torch_xla.sync()
            found = y.cpu()
        moved = found.to("xla")
    line = products.__code__.co_firstlineno + 14
    name = f"{Path(__file__).name}:{line} (40 ops)"
    rows = {event.key: event.count for event in profile.key_averages() if event.key.startswith("xla::")}
    assert rows.pop("xla::wait") >= 3 and moved.device.type == "xla"
    assert rows == {
        f"xla::compile {name}": 1, f"xla::launch {name}": 3, f"xla::execute {name}": 3, "xla::device_to_host": 3,
        "xla::host_to_device": 1,
    }  # fmt: skip
    by_name = {
        what: [e for e in profile.events() if e.name.startswith(f"xla::{what}")]
        for what in ("launch", "execute", "device_to_host")
    }
    for launch, run, read in zip(*by_name.values(), strict=True):
        assert run.thread != launch.thread == read.thread
        assert run.time_range.start <= launch.time_range.end + 1 and run.time_range.start < run.time_range.end
        assert run.time_range.end <= read.time_range.end + 1, "a read value had been computed"
    steps = [event for event in profile.events() if event.name == "step"]
    assert all({"aten::matmul", f"xla::launch {name}"} <= {child.name for child in step.cpu_children} for step in steps)


def test_an_execution_ends_when_its_end_is_observed() -> None:
    """The completion thread may wake up late: a program launched meanwhile starts at its launch."""
    device, woken = 7, threading.Event()  # no other test uses the completion thread of this device
    value = jax.numpy.ones(3).block_until_ready()

    class Late:
        def block_until_ready(self) -> None:
            woken.wait()

    metric = metrics.Metric("ExecuteTime", metrics.format_time)
    runs = [profiler_spans.DeviceEvent(device, "read", time.perf_counter_ns(), result=weakref.ref(value))]
    completion.track_completion(device, metric, runs[0].start, Late(), runs[0])
    assert runs[0].has_ended()
    runs.append(profiler_spans.DeviceEvent(device, "the next", time.perf_counter_ns(), result=weakref.ref(value)))
    completion.track_completion(device, metric, runs[1].start, value, runs[1])
    launched, seen = runs[1].start, runs[0].end
    woken.set()
    while not runs[1].end:
        time.sleep(0.001)
    assert runs[0].end == seen <= launched == runs[1].start < runs[1].end


def test_torch_profiler_shows_op_by_op_execution() -> None:
    from torch_xla.experimental import eager_mode

    eager_mode(True)
    try:
        with torch.profiler.profile() as profile:
            (torch.ones(3, device="xla") + 1).cpu()
    finally:
        eager_mode(False)
    assert any(re.fullmatch(r"xla::execute .*\(op by op\)", event.key) for event in profile.key_averages())


@pytest.mark.filterwarnings("ignore:.*legacy|.*deprecated")
def test_other_profilers_get_no_spans() -> None:
    x = torch.ones(64, 64, device="xla")
    products(x, 2).cpu()
    with profiler_legacy.profile() as profile:
        products(x, 2).cpu()
    names = {event.key for event in profile.key_averages()}
    assert "aten::mm" in names and not any(name.startswith("xla::") for name in names)


def test_nothing_is_recorded_without_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(64, 64, device="xla")
    with torch.profiler.profile():
        y = products(x, 40)
        torch_xla.sync()  # may be in flight when the profile ends
    monkeypatch.setattr(torch.profiler, "record_function", None)
    products(y, 2).cpu()
    assert not profiler_spans._open_events()


def test_server(tmp_path: Path) -> None:
    """A separate process starts a server and profiles itself through its address while it works."""
    run_script(
        f"""
        import glob, gzip, json, socket, time
        import torch, torch_xla
        from torch_xla.debug import profiler as xp
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        server = xp.start_server(port)
        assert server is not None
        assert xp.start_server(port) is server and torch_xla.device_count() == 2
        try:
            xp.start_server(port + 1)
            raise SystemExit("a second server")
        except ValueError as error:
            assert str(port) in str(error)
        x = torch.ones(8, 8, device="xla")
        for _ in range(2):  # compile before the trace
            x = x * 0.5
            torch_xla.sync(wait=True)
        tracing = xp.trace_detached(f"localhost:{{port}}", {str(tmp_path)!r}, duration_ms=800)
        while tracing.is_alive():
            with xp.StepTrace("train"):
                x = x * 0.5
            time.sleep(0.01)
        tracing.join()
        (file,) = glob.glob({str(tmp_path)!r} + "/plugins/profile/*/*.trace.json.gz")
        assert any(e.get("name") == "train" for e in json.load(gzip.open(file))["traceEvents"])
    """,
        CPU_NUM_DEVICES="2",
    )


def test_server_on_the_first_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert xp.start_server(1) is None


def test_another_process_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^trace: (no profile from localhost:1 in 0 s|.*pip install xprof)"):
        xp.trace("localhost:1", str(tmp_path), timeout_s=0)
