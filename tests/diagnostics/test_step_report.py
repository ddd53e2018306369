"""torch_xla.debug.report(): data of a loop, bottlenecks, and the HTML page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from torch import nn

import torch_xla
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import step_timings
from torch_xla.debug import bottlenecks, report, report_charts, report_data


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.randn(4)


@pytest.fixture(scope="module")
def loop() -> dict[str, Any]:
    """A report of a loop with a slow loader, a value read and a CPU fallback in each step."""
    torch_xla.sync()
    step_timings.clear()
    program_cache.cache.clear()
    model = nn.Linear(4, 2).to("xla")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in torch.utils.data.DataLoader(Slow(), batch_size=1):
            y = model(x.to("xla"))
            y.nonzero()
            y.sum().item()
            torch_xla.sync()
    return report().as_dict()


def test_numbers(loop: dict[str, Any]) -> None:
    assert loop["steps"]["count"] == len(loop["timeline"]) == 6
    for row in loop["timeline"]:
        assert sum(row["parts"].values()) == pytest.approx(row["wall_ms"])
        assert row["parts"]["input"] >= 20 and row["parts"]["transfers"] > 0 and row["parts"]["execute"] > 0
        assert row["peak_bytes"] > 0
    assert loop["timeline"][0]["compiled"] >= 2 and loop["timeline"][-1]["compiled"] == 0
    assert len(loop["compilations"]) == sum(row["compiled"] for row in loop["timeline"])
    assert sum(row["share"] for row in loop["time"].values()) == pytest.approx(1)
    assert sum(row["ms_per_step"] for row in loop["time"].values()) == pytest.approx(loop["steps"]["mean_ms"])
    (fallback,) = loop["fallbacks"]
    (read,) = loop["reads"]
    first = loop_line("y.nonzero()")
    assert (fallback["op"], fallback["line"], fallback["per_step"]) == ("aten::nonzero", f"{__file__}:{first}", 1)
    assert (read["line"], read["per_step"]) == (f"{__file__}:{first + 1}", 1)
    assert set(loop["memory"]) == {"xla:0"}
    json.dumps(loop)


def loop_line(text: str) -> int:
    return Path(__file__).read_text().splitlines().index(f"            {text}") + 1


def test_bottlenecks_of_the_loop(loop: dict[str, Any]) -> None:
    found = {v["kind"]: v["text"] for v in loop["bottlenecks"] if v["level"] == "problem"}
    assert set(found) <= {"input-bound", "fallback", "read"} and found["input-bound"].startswith(
        "input-bound: waiting for the DataLoader takes "
    )
    line = loop_line("y.nonzero()")
    assert found["fallback"].startswith(
        f"fallback: aten::nonzero runs on the CPU, 1 call per step at {__file__}:{line}, "
    )
    notes = {v["kind"]: v["text"] for v in loop["bottlenecks"]}
    assert notes["read"].startswith(f"value read: 1 value read per step at {__file__}:{line + 1}; ")
    assert "See: torch-xla explain data-dependent-shape" in next(
        v["advice"] for v in loop["bottlenecks"] if v["kind"] == "fallback"
    )


def test_text(loop: dict[str, Any]) -> None:
    text = str(torch_xla.debug.Report(loop))
    assert "\n6 steps, " in text and "\n[problem] input-bound: " in text and "aten::nonzero" in text
    assert re.search(r"^  input +[\d.]+ ms +\d+% +[\d.]+ ms +\d+%  #+$", text, re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 100 and "/" not in line] == []
    assert f"torch {torch.__version__}, torch_xla " in text and "device: 1 × CPU" in text and "\ncommand: " in text
    assert f"{shorten_paths(__file__)}:{loop_line('y.nonzero()')}\n    | y.nonzero()" in text, "quoted source"
    assert __file__ not in text, "relative paths"


def test_events(loop: dict[str, Any]) -> None:
    rows = loop["events"]
    assert {"compile", "execute", "transfer to device"} <= set(rows)
    assert all(0 < row["p50_ms"] <= row["p95_ms"] <= row["total_ms"] for row in rows.values())
    assert re.search(
        r"^  execute +\d+ +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms$", str(torch_xla.debug.Report(loop)), re.MULTILINE
    )


def test_last(loop: dict[str, Any]) -> None:
    assert report(last=2).as_dict()["steps"]["count"] == 2
    with pytest.raises(ValueError, match=r"^report: last=0: expected at least 1 step"):
        report(last=0)


def test_no_steps() -> None:
    kept = step_timings.steps()
    step_timings.clear()
    try:
        empty = report()
        assert empty.as_dict()["bottlenecks"][0]["kind"] == "no steps"
        assert "No step has ended" in str(empty) and "<svg" not in empty.as_html()
    finally:
        step_timings._history.extend(kept)


def numbers(
    wall: float = 10.0, steps: int = 10, compiled: int = 0, unstable: int = 0, **parts: float
) -> dict[str, Any]:
    """Return report data in which every step has these parts in ms, and the rest is "other"."""
    every = dict.fromkeys(report_data.CATEGORIES, 0.0) | parts
    every["other"] = wall - sum(parts.values())
    row = {
        "parts": every, "wall_ms": wall, "compiled": compiled, "recompiled": compiled,
        "recompile_ms": every["compile"], "interpreted": unstable, "unstable": unstable,
        "unstable_ms": every["interpreted"], "settled": not compiled,
    }  # fmt: skip
    time = {name: {"settled_ms": ms, "settled_share": ms / wall} for name, ms in every.items()}
    return {
        "steps": {"count": steps, "mean_ms": wall, "ops": 100.0},
        "settled": {"count": 0 if compiled else steps, "mean_ms": wall, "median_ms": wall},
        "warm_up": {"count": 0, "ms": 0.0},
        "device_busy_ms": 0.0,
        "not_compiled": {"lines": ["a.py:5"]} if unstable else {},
        "time": time, "timeline": [row] * steps, "fallbacks": [], "reads": [], "memory": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (numbers(30.0, tracing=26.0), "host-bound", "Python code takes 26 ms of the 30 ms"),
        (numbers(30.0, input=14.0), "input-bound", "14 ms of the 30 ms"),
        (numbers(40.0, transfers=14.0), "transfer-bound", "14 ms of the 40 ms"),
        (numbers(compiled=1, compile=5.0), "compile-bound", "10 recompilations in 10 steps took 50 ms of 100 ms"),
        (
            numbers(unstable=1, interpreted=5.0),
            "interpreted",
            "10 graphs ran op by op, 50 ms of 100 ms; the graph changes on every call at a.py:5",
        ),
        (
            numbers() | {"fallbacks": [{"op": "aten::unique", "line": "a.py:3", "per_step": 3.0, "ms_per_step": 0.1}]},
            "fallback",
            "aten::unique runs on the CPU, 3 calls per step at a.py:3",
        ),
        (
            numbers() | {"reads": [{"line": "a.py:4", "per_step": 2.5, "ms_per_step": 0.1, "settled_ms": 0.1}]},
            "read",
            "2.5 values read per step at a.py:4",
        ),
        (
            numbers() | {"memory": {"xla:1": {"peak_bytes_used": 95, "bytes_limit": 100}}},
            "memory",
            "xla:1 used up to 95 % of its memory",
        ),
    ],
)
def test_bottleneck(data: dict[str, Any], kind: str, text: str) -> None:
    found = bottlenecks.find_bottlenecks(data)
    assert [(v["kind"], v["level"]) for v in found] == [(kind, "problem")]
    assert text in found[0]["text"], found


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (numbers(), None),
        (
            numbers(tracing=6.0),
            "tracing-bound: Python and recording take 6 ms of the 10 ms of a step (100 ops, 60.0 µs per",
        ),
        (numbers(input=4.0), "input-bound: waiting for the DataLoader takes 4 ms of the 10 ms"),
        (numbers(transfers=3.5), "transfer-bound: copies between CPU and device take 3.5 ms of the 10 ms"),
        (numbers(waiting=3.0, execute=3.0), "device-bound: the device runs compiled programs for 6 ms of the 10 ms"),
        (
            numbers(30.0, tracing=29.0) | {"device_busy_ms": 28.0},
            "device-bound: the device runs compiled programs for 28 ms",
        ),
        (numbers(unstable=1, interpreted=0.2), None),
        (
            numbers() | {"reads": [{"line": "a.py:4", "per_step": 1.0, "ms_per_step": 1.0, "settled_ms": 0.1}]},
            "value read: 1 value read per step at a.py:4",
        ),
    ],
)
def test_healthy(data: dict[str, Any], note: str | None) -> None:
    """A note says where the time goes; it is no problem."""
    first, *rest = bottlenecks.find_bottlenecks(data)
    assert (first["kind"], first["level"]) == ("healthy", "ok")
    assert first["text"] == "no problem found: 10 of 10 steps ran known programs only, " + (
        f"{data['steps']['mean_ms']:.0f} ms each (median)."
    )
    assert [(entry["level"], entry["text"].startswith(note or "-")) for entry in rest] == [("note", True)] * bool(note)


def test_advice_for_a_step_that_is_bound_by_recording() -> None:
    (note,) = bottlenecks.find_bottlenecks(numbers(tracing=6.0))[1:]
    assert note["advice"].startswith("torch_xla.compile(step, replay=True) launches the step without recording it")


def test_recompilations_of_a_smaller_last_batch_are_no_problem() -> None:
    data = numbers(compiled=1, compile=5.0)
    for row in data["timeline"][2:]:
        assert row["recompiled"]
    data["timeline"] = [
        row | {"recompiled": 0, "recompile_ms": 0.0} if i > 1 else row for i, row in enumerate(data["timeline"])
    ]
    assert bottlenecks.find_bottlenecks(data)[0]["level"] == "ok"


def test_warm_up() -> None:
    steps = [step_timings.StepRecord("MainThread", 0, number=i, end=10_000_000) for i in range(6)]
    first = step_timings.InterpretationRecord(3_000_000, 90, "a.py:3", unstable=False)
    steps[0].interpretations = steps[1].interpretations = (first,)
    steps[2].compilations = (step_timings.CompilationRecord(0, 4_000_000, 90, "sync", "a.py:3"),)
    assert [step.is_settled for step in steps] == [False, False, False, True, True, True]
    rows = [report_data._row(step, 0, 2.0) for step in steps]
    assert report_data._warm_up(rows) == {"count": 3, "ms": 30.0}
    assert rows[0]["parts"]["first use"] == 8.0 and rows[0]["parts"]["tracing"] == 2.0
    assert rows[3]["parts"]["first use"] == 0.0 and rows[3]["parts"]["tracing"] == 10.0
    assert report_data._warm_up([row | {"settled": False} for row in rows])["count"] == 4, "not all of a dynamic script"


def test_rare_events_are_no_bottleneck() -> None:
    rare = {"op": "aten::unique", "line": "a.py:3", "per_step": 0.1, "ms_per_step": 0.1, "settled_ms": 0.1}
    found = bottlenecks.find_bottlenecks(numbers() | {"fallbacks": [rare], "reads": [rare]})
    assert [v["kind"] for v in found] == ["healthy"]


@pytest.fixture
def chromium() -> str:
    """Return the command of the browser."""
    found = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), None)
    if found is None:
        pytest.skip("needs a browser, as in apt-get install chromium")
    return found


def test_times_beside_a_chart() -> None:
    assert [report_charts._time(ms) for ms in (0.5, 20.46, 999, 4091, 61_000)] == [
        "0.5 ms", "20.5 ms", "999 ms", "4.091 s", "61 s"
    ]  # fmt: skip


#: Checks that every chart label is inside the chart, and every table header on one line.
_FITS = """<script>
let fits = true;
for (const label of document.querySelectorAll("svg text")) fits &&= label.getBBox().x >= 0;
for (const head of document.querySelectorAll("th")) fits &&= head.offsetHeight < 40;
document.body.dataset.fits = fits;
</script>"""


def test_page_in_a_browser(loop: dict[str, Any], chromium: str, tmp_path: Path) -> None:
    """Loaded from disk without a network, the script runs, every step has a bar, and the charts are drawn."""
    hostile = loop | {
        "bottlenecks": [{"kind": "x", "level": "problem", "text": "</script><b id=hostile>", "advice": "& more"}],
        "recompilations": [{"times": 2, "text": "why " * 100}],
    }
    page, picture = torch_xla.debug.Report(hostile).save(tmp_path / "report.html"), tmp_path / "page.png"
    text = page.read_text()
    page.write_text(text.replace("</body>", f"{_FITS}</body>"))
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", text), "the page is self-contained"
    browser = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,1600",
               "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile"]  # fmt: skip
    done = subprocess.run([*browser, "--dump-dom", page.as_uri()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'data-ready="6"' in done.stdout, "the script finished"
    assert 'data-fits="true"' in done.stdout, "a label is clipped, or a header wraps"
    assert "<b id=" not in done.stdout and "&lt;b id=hostile&gt;" in done.stdout
    last = loop["timeline"][-1]
    assert f"step {last['number']} (MainThread): {last['wall_ms']:.3f} ms" in done.stdout
    done = subprocess.run([*browser, f"--screenshot={picture}", page.as_uri()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pixels = matplotlib.image.imread(picture)[:, :, :3].reshape(-1, 3)
    colors = {tuple(int(255 * c + 0.5) for c in pixel) for pixel in pixels[::3]}
    assert {(0xE8, 0xA3, 0x3D), (0x4C, 0x78, 0xA8)} <= colors, "bars in the colors of input and tracing"
