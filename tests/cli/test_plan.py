"""``torch-xla plan``: grid, stored results, processes, rows, advice, search and page, with a stand-in for the compiler.

tests/support/plan_worker.py is the process of a combination. The compiler is that of this machine's CPU, or libtpu.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import scripts
from tests.support.helpers import run_script
from tests.support.plan_worker import make_report
from torch_xla.cli import entry
from torch_xla.cli.plan import (
    advice,
    chart,
    command,
    page,
    planner,
    process_pool,
    result_store,
    search,
    summary,
    table,
    variations,
)
from torch_xla.cli.plan.variations import Combination, Variation

# --- the grid ---


def test_grid() -> None:
    varied = [variations.parse_variation(text) for text in ("mesh=1x4,2x2", "remat=on,off,on")]
    grid = variations.make_grid(["v5e:2x2", "h100"], varied)
    assert len(grid) == 8 and grid[0] == Combination("v5e:2x2", (("mesh", "1x4"), ("remat", "on")))
    assert grid[0].label == "v5e:2x2 mesh=1x4 remat=on"
    assert grid[0].script_arguments(["--steps", "9"]) == ["--steps", "9", "--mesh", "1x4", "--remat"]
    assert grid[1].script_arguments([]) == ["--mesh", "1x4"]
    assert variations.make_grid(["v5e"], []) == [Combination("v5e")]
    assert variations.parse_variation("batch-size=8") == Variation("batch-size", ("8",))


@pytest.mark.parametrize(
    ("expression", "arguments", "count"),
    [
        ("64", (), 64),
        ("batch_size", ("--batch_size", "8", "--batch_size", "16"), 16),
        ("batch_size * length", ("--batch-size=8", "--length", "128"), 1024),
        ("(a + 2) * b / 4 - 1", ("--a", "2", "--b", "4"), 3),
    ],
)
def test_counts(expression: str, arguments: Sequence[str], count: float) -> None:
    assert variations.evaluate_count(expression, arguments) == count


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("batch", "the script's arguments have no --batch: give its value, or a number in the expression"),
        ("mesh", "--mesh 2x2 is not a number"),
        ("f(3)", "expected numbers, names of options"),
        ("3 **", "invalid syntax"),
        ("2 ** 9", "expected numbers, names of options"),
        ("1 / 0", "float division by zero|division by zero"),
        ("3 - 3", "'3 - 3' is 0, not a positive number"),
    ],
)
def test_wrong_counts(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        variations.evaluate_count(expression, ["--mesh", "2x2"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vary", "mesh"], "'mesh' is not NAME=VALUE,VALUE,... such as batch_size=64,128"),
        (["--vary", "mesh="], "'mesh=' is not NAME=VALUE"),
        (["--vary", "--mesh=1"], "expected one argument"),
        (["--price", "v5e"], "'v5e' is not TARGET=PRICE, the price of a chip for an hour"),
        (["--price", "v5e=-1"], "is not TARGET=PRICE"),
        (["--targets", "v9"], "--targets v9: expected a TPU with a topology, e.g. v5e:2x2"),
        (["--targets", ","], "--targets ,: expected a TPU"),
        (["--tokens", "batch"], "the script's arguments have no --batch"),
        (["--tokens", "1", "--samples", "1"], "not allowed with argument"),
        (["--jobs", "0"], "0: expected at least 1"),
    ],
)
def test_wrong_command_lines(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(["plan", "--targets", "v5e", *args, __file__])
    assert ended.value.code == 2 and message in capsys.readouterr().err


# --- stored results ---


def test_stored_results(tmp_path: Path) -> None:
    """A result is used again until a source file changes or disappears."""
    source, store = tmp_path / "model.py", result_store.ResultStore(tmp_path / "results")
    source.write_text("first")
    assert store.load("key") is None
    result = {"report": {"a": 1}, "sources": result_store.hash_files([str(source)])}
    store.save("key", result)
    assert store.load("key") == result and store.load("other") is None
    source.write_text("second")
    assert store.load("key") is None
    source.write_text("first")
    assert store.load("key") == result
    source.unlink()
    assert store.load("key") is None
    (tmp_path / "results" / "key.json").write_text("{")
    assert store.load("key") is None


def test_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Arguments, the folder, variables that change programs, and versions are part of the key."""
    keys = [result_store.make_key(["--target", "v5e"]), result_store.make_key(["--target", "v6e"])]
    monkeypatch.setenv("XLA_USE_BF16", "1")
    keys.append(result_store.make_key(["--target", "v5e"]))
    monkeypatch.setattr(result_store, "__version__", "0")
    keys.append(result_store.make_key(["--target", "v5e"]))
    monkeypatch.chdir(tmp_path)
    keys.append(result_store.make_key(["--target", "v5e"]))
    assert len(set(keys)) == 5
    monkeypatch.setenv("TORCH_XLA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("UNRELATED", "1")
    assert result_store.make_key(["--target", "v5e"]) == keys[-1]


def test_the_default_folder_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(result_store, "settings", SimpleNamespace(cache_dir=tmp_path / "cache"))
    before = os.umask(0)
    try:
        store = result_store.ResultStore(None)
        store.save("key", {"sources": {}})
    finally:
        os.umask(before)
    assert store.folder.stat().st_mode & 0o777 == 0o700 and store.load("key") == {"sources": {}}


# --- processes ---


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A script that the stand-in for the compiler pretends to run."""
    monkeypatch.setattr(planner, "WORKER", "tests.support.plan_worker")
    path = tmp_path / "train.py"
    path.touch()
    return path


def plan(script: Path, *words: str) -> int:
    return entry.main(["plan", "--jobs", "2", "--results", str(script.parent / "results"), *words])


def run_count(script: Path) -> int:
    file = script.parent / "runs.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_plan(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are sorted, failures are rows with a reason, and a second plan compiles only what was not stored."""
    file = script.parent / "plan.json"
    words = ["--vary", "act=fits,large,crash,raise,missing", "--json", str(file), "--targets", "v5e:2x2", str(script)]
    assert plan(script, "--vary", "batch_size=8,16", *words) == 0
    data = json.loads(file.read_text())
    rows = {(row["values"]["act"], row["values"]["batch_size"]): row for row in data["rows"]}
    assert [row["result"] for row in data["rows"][:2]] == ["fits", "fits"] and run_count(script) == 10
    assert rows["large", "8"]["result"] == "does not fit"
    assert rows["large", "8"]["reason"] == "needs 20.0 GB of 16.0 GB per chip, mostly parameters and optimizer state"
    assert rows["crash", "8"]["reason"] == (
        "the process was ended by SIGKILL compiling program 2 (train.py:4); the machine may be out of memory: "
        "use fewer --jobs"
    )
    assert rows["raise", "8"]["reason"] == "the process ended with exit code 1; starting; ; ValueError: mine"
    assert rows["missing", "8"]["result"] == "not compiled"
    out = capsys.readouterr().out
    assert "v5e:2x2 batch_size=8 act=missing: not compiled: libtpu is not installed" in out
    assert out.endswith(f"10 combinations in {data['seconds']:.0f} s\n")
    assert plan(script, "--vary", "batch_size=8,16", *words) == 0
    assert run_count(script) == 16, "those that crashed, raised or had no compiler run again"
    assert "10 combinations in" in (out := capsys.readouterr().out) and "4 of them from stored results" in out
    assert plan(script, "--vary", "batch_size=8,16", "--fresh", *words) == 0 and run_count(script) == 26
    script.write_text("changed")
    assert plan(script, "--vary", "batch_size=8,16", *words) == 0 and run_count(script) == 36


@pytest.mark.parametrize(("acts", "code"), [("large", 3), ("raise", 1), ("missing", 2), ("missing,raise,large", 3)])
def test_exit_codes(acts: str, code: int, script: Path) -> None:
    assert plan(script, "--vary", f"act={acts}", "--targets", "v5e", str(script)) == code


def test_results_that_cannot_be_stored(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "results").write_text("a file")
    assert plan(script, "--targets", "v5e", str(script)) == 1
    assert "cannot store results: " in capsys.readouterr().err


PLAN = """
    import sys
    from torch_xla.cli import entry
    from torch_xla.cli.plan import planner
    planner.WORKER = "tests.support.plan_worker"
    if __name__ == "__main__":
        sys.exit(entry.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signal_to_the_plan(number: signal.Signals, script: Path) -> None:
    """SIGTERM ends the processes of all combinations; results that were stored before are used again."""
    program = script.parent / "program.py"
    program.write_text(textwrap.dedent(PLAN))
    words = ["plan", "--targets", "v5e", "--jobs", "1", "--results", str(script.parent / "results")]
    with subprocess.Popen(
        [sys.executable, str(program), *words, "--vary", "act=fits,sleep", str(script)],
        env=scripts.environment() | {"PYTHONPATH": str(scripts.ROOT)},
    ) as started:
        while run_count(script) < 2:
            assert started.poll() is None
            time.sleep(0.05)
        started.send_signal(number)
    assert started.returncode == (143 if number == signal.SIGTERM else -number)
    pid = int((script.parent / "runs.txt").read_text().splitlines()[1].split()[0])
    if number == signal.SIGTERM:  # otherwise worker.py watches its parent; the stand-in does not
        assert not Path(f"/proc/{pid}").exists()
    else:
        os.kill(pid, signal.SIGKILL)
    assert len(list((script.parent / "results").glob("*.json"))) == 1


def test_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= process_pool.default_process_count() <= len(os.sched_getaffinity(0))
    monkeypatch.setattr(process_pool, "_MEMORY", 1 << 60)
    assert process_pool.default_process_count() == 1


# --- rows, advice and the table ---


def make_row(report: dict[str, Any], count: float | None = 128, **prices: float) -> dict[str, Any]:
    return summary.make_row(Combination("v5e:2x2", (("remat", "on"),)), {"report": report}, count, prices)


def test_rates() -> None:
    row = make_row(make_report(0.5), v5e=1.5)
    assert row["per_second"] == 256 and row["per_dollar"] == pytest.approx(3600 * 256 / (4 * 1.5))
    assert row["mfu"] == pytest.approx(2e12 / 1e14 / 0.5)
    assert sum(row["parts"].values()) == pytest.approx(row["seconds"])
    assert make_row(make_report(0.5))["per_dollar"] is None
    assert make_row(make_report(0.5), None)["per_second"] == 2, "steps"


@pytest.mark.parametrize(
    ("change", "bottleneck", "first"),
    [
        ({}, "compute (70% of the time is in matmuls at their peak rate)", "recompute fewer activations"),
        ({"chips_used": 1}, "1 of 4 chips are used", "shard the model over a mesh of all chips"),
        (
            {"fallbacks": [{"per_step": 1.0, "op": "aten::foo", "line": "train.py:3"}]},
            "aten::foo run on the host in every step",
            "replace aten::foo, first at train.py:3",
        ),
        (
            {"parts": {"compute": 0.2, "memory": 0.3, "collectives": 0.5}},
            "collectives (50% of the time), mostly all-gather among 4 chips",
            "give each chip a larger batch, or shard weights over fewer chips",
        ),
        (
            {"parts": {"compute": 0.2, "memory": 0.7, "collectives": 0.1}},
            "memory bandwidth (70% of the time), most of it in mm",
            "use a larger batch: more than half of the memory is free",
        ),
        (
            {"parts": {"compute": 0.2, "memory": 0.7, "collectives": 0.1}, "op": "Net/aten::_sdpa_attention"},
            "memory bandwidth (70% of the time), most of it in _sdpa_attention",
            "use a fused attention kernel",
        ),
    ],
)
def test_bottlenecks(change: dict[str, Any], bottleneck: str, first: str) -> None:
    report = make_report(1.0)
    program = report["programs"][0]
    program["parts"] = change.pop("parts", program["parts"])
    program["expensive"][0]["op"] = change.pop("op", program["expensive"][0]["op"])
    row = make_row(report | change)
    assert row["bottleneck"] == bottleneck and row["advice"].startswith(first)


def test_memory_advice() -> None:
    report = make_report(1.0, 40 * 10**9)
    report["programs"][0]["memory"]["least_bytes"] = 2 * 10**9
    found = advice.explain_memory(report)
    assert found.bottleneck == "needs 40.0 GB of 16.0 GB per chip, mostly activations"
    assert found.change.startswith("recompute activations")


def test_rows_without_an_estimate() -> None:
    failed = make_report(1.0) | {"failure": "the script raised ValueError: mine\n" + "x" * 500}
    assert make_row(failed)["result"] == summary.FAILED and len(make_row(failed)["reason"]) == 300
    idle = make_report(1.0)
    idle["programs"][0]["step_runs"] = 0
    assert "the script ran no step" in make_row(idle)["reason"]


def test_order_and_table() -> None:
    rows = [
        summary.make_row(Combination("v5e:2x2", (("batch", "8"),)), {"report": make_report(1.0)}, 8, {"v5e": 1.0}),
        summary.make_row(Combination("h100:4", (("batch", "8"),)), {"report": make_report(0.5)}, 8, {"h100": 9.0}),
        summary.make_row(Combination("v5e", (("batch", "9"),)), {"error": "why", "lasts": True}, 9, {}),
    ]
    by_rate, by_price = (summary.sort_rows(rows, key) for key in ("per_second", "per_dollar"))
    assert [row["target"] for row in by_rate] == ["h100:4", "v5e:2x2", "v5e"]
    assert [row["target"] for row in by_price] == ["v5e:2x2", "h100:4", "v5e"]
    assert summary.sort_rows(rows, "memory")[-1]["target"] == "v5e"
    heading, first, second, third, *rest = table.render_text({"rows": by_price, "unit": "samples"}).splitlines()
    assert heading.split()[:4] == ["target", "batch", "result", "memory"] and "samples/$" in heading
    assert re.split(r"  +", first) == [
        "v5e:2x2", "8", "fits", "4.0 GB of 16.0 GB", "3", "1.0 MB", "1,000 ms", "2.0%", "8", "7,200", "70% / 20% / 10%",
    ]  # fmt: skip
    assert second.startswith("h100:4") and third.split() == ["v5e", "9", "failed"]
    assert "  v5e batch=9: failed: why" in rest and any("were not measured" in line for line in rest)


# --- search ---


def run_search(seconds: dict[tuple[str, str], float], limit: int = 24, seed: str = "v5e:2x4") -> list[Combination]:
    """Search with a time for each (mesh, remat) that fits; return the combinations in the order of compilation."""
    results: dict[Combination, dict[str, Any]] = {}
    order: list[Combination] = []

    def compile_(combinations: Sequence[Combination]) -> None:
        for combination in combinations:
            values = dict(combination.values)
            time_ = seconds.get((values["mesh"], values["remat"]))
            report = make_report(1.0, 20 * 10**9) if time_ is None else make_report(time_)
            results[combination] = {"report": report}
            order.append(combination)

    search.search(compile_, results, [Combination(seed, (("length", "9"),))], limit)
    return order


def test_search() -> None:
    """The search walks to the fastest mesh, and tries recomputation only where memory does not suffice without."""
    meshes = ["x".join(map(str, m)) for m in itertools.product((1, 2, 4, 8), repeat=3) if m[0] * m[1] * m[2] == 8]
    times = {(mesh, remat): 2.0 for mesh in meshes for remat in ("on", "off")}
    del times["1x8x1", "off"]
    times |= {("2x4x1", "off"): 1.5, ("4x2x1", "off"): 1.0}
    order = run_search(times)
    tried = [(dict(c.values)["mesh"], dict(c.values)["remat"]) for c in order]
    assert tried[:2] == [("1x8x1", "off"), ("1x8x1", "on")] and ("4x2x1", "off") in tried
    assert all(remat == "off" for mesh, remat in tried if mesh != "1x8x1")
    assert len(set(tried)) == len(tried) and all(dict(c.values)["length"] == "9" for c in order)
    assert len(run_search(times, limit=3)) == 3
    assert run_search({}, seed="h100")[0].values[0] == ("mesh", "1x1x1")
    nothing_fits = [dict(c.values)["mesh"] for c in run_search({})]
    assert set(nothing_fits) == {"1x8x1", *("x".join(map(str, m)) for m in search.neighbors((1, 8, 1)))}


def test_neighbors() -> None:
    assert set(search.neighbors((1, 4, 1))) == {(2, 2, 1), (1, 2, 2)}
    assert set(search.neighbors((1, 6, 1))) == {(2, 3, 1), (3, 2, 1), (1, 3, 2), (1, 2, 3)}
    assert search.chip_count("v5p:2x2x2") == 8 and search.chip_count("h100") == 1


def test_search_of_the_command(script: Path) -> None:
    file = script.parent / "plan.json"
    assert plan(script, "--search", "--limit", "4", "--targets", "v5e:2x2", "--json", str(file), str(script)) == 0
    rows = json.loads(file.read_text())["rows"]
    assert {row["values"]["mesh"] for row in rows} == {"1x4x1", "2x2x1", "1x2x2"}


# --- the page ---


@pytest.fixture
def data() -> dict[str, Any]:
    hostile = {"error": "</script><b id=hostile>", "lasts": True}
    rows = [
        summary.make_row(
            Combination(target, (("batch", str(n)),)), {"report": make_report(n / 9, n * 10**9)}, n, {"v5e": 1.0}
        )
        for target, n in itertools.product(("v5e:2x2", "h100"), (2, 4, 8))
    ]
    rows.append(summary.make_row(Combination("v5e", (("batch", "<9>"),)), hostile, 9, {}))
    return {"rows": rows, "unit": "samples", "command": "torch-xla plan <x>", "version": "1"}


def test_chart(data: dict[str, Any]) -> None:
    """Points are in the order of time and memory, and below the memory of their chips."""
    svg = chart.memory_chart([row for row in data["rows"] if row["result"] == "fits"])
    points = [(float(x), float(y)) for x, y in re.findall(r'class="combination".*?cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert len(points) == 6 and points[0][0] < points[1][0] < points[2][0] and points[0][1] > points[1][1]
    assert svg.count('class="capacity"') == 2
    top = float(re.findall(r'class="capacity".*?y1="([\d.]+)"', svg)[0])
    assert all(80 <= x <= 940 and top < y <= 380 for x, y in points)
    assert "NaN" not in chart.memory_chart([data["rows"][0]])


def test_page_in_a_browser(data: dict[str, Any], tmp_path: Path) -> None:
    """Loaded from disk without a network, the script runs, and the labels are inside the chart."""
    browser = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), None)
    if browser is None:
        pytest.skip("needs a browser, as in apt-get install chromium")
    check = """<script>
    let fits = true;
    for (const label of document.querySelectorAll("svg text")) {
      const box = label.getBBox(); fits &&= box.x >= 0 && box.x + box.width <= 960; }
    for (const head of document.querySelectorAll("th")) fits &&= head.offsetHeight < 40;
    document.querySelector("tr[data-row]").dispatchEvent(new Event("mouseover"));
    fits &&= document.querySelector(".combination").getAttribute("r") === "10";
    document.body.dataset.fits = fits;
    </script>"""
    path = tmp_path / "plan.html"
    text = page.render_html(data)
    assert not re.search(r"""(src|href)=|https?://|@import|url\(""", text), "the page is self-contained"
    path.write_text(text.replace("</body>", f"{check}</body>"))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000", f"--user-data-dir={tmp_path}/p"]
    done = subprocess.run([browser, *words, "--dump-dom", path.as_uri()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'data-ready="6"' in done.stdout and 'data-fits="true"' in done.stdout
    assert "<b id=" not in done.stdout and "&lt;b id=hostile&gt;" in done.stdout
    assert json.loads(re.search(r'id="data">(.*?)</script>', text)[1]) == data  # type: ignore[index]


# --- the compiler ---

TRAIN = """
import sys, torch, torch_xla
model = torch.nn.Linear(64, int(sys.argv[sys.argv.index("--width") + 1])).to("xla")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    model(torch.randn(8, 64, device="xla")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
"""

COMPILE = """
    import json, sys, jax
    from pathlib import Path
    from torch_xla._engine.aot import hardware_specs, targets
    from torch_xla.cli.plan import worker
    from torch_xla.cli.plan.job import PlanJob

    chip = hardware_specs.ChipSpec("c", "c", {"bf16": 1e12, "f32": 1e12}, SIZE, 1e9, 1e9, "")
    targets.get_target = lambda name: targets.Target(name, "cpu", chip, tuple(jax.local_devices(backend="cpu"))[:1])
    job = PlanJob("here", "SCRIPT", ("--width", "32"), False, 3, Path("FOLDER"))
    result = worker.compile_combination(job)
    print("RESULT", json.dumps(result), json.dumps("SCRIPT" in worker.source_files(job)))
"""


@pytest.mark.parametrize(("size", "result"), [(1 << 30, "fits"), (20_000, "does not fit")])
def test_compile_combination(size: int, result: str, tmp_path: Path) -> None:
    """The worker ends the script at its third step; a program whose arguments exceed the memory is not compiled."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    code = COMPILE.replace("SIZE", str(size)).replace("SCRIPT", str(script)).replace("FOLDER", str(tmp_path))
    out = run_script(code, check=False).stdout
    line = next(line for line in out.splitlines() if line.startswith("RESULT"))
    found, end = json.JSONDecoder().raw_decode(line.removeprefix("RESULT "))
    assert line.endswith("true") and end
    row = summary.make_row(Combination("here"), found, 8, {})
    assert row["result"] == result, row
    programs = found["report"]["programs"]
    if result == "fits":
        assert found["report"]["steps"] == 3 and sum(program["step_runs"] for program in programs) >= 1
        assert row["flops"] >= 2 * 2 * 8 * 64 * 32 and sum(row["parts"].values()) == pytest.approx(row["seconds"])
    else:
        assert "was not compiled" in programs[-1]["error"] and programs[-1]["memory"]["least_bytes"] > size
        assert "mostly parameters and optimizer state" in row["reason"]


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'jax[tpu]'"
)
def test_plan_for_tpus(tmp_path: Path) -> None:
    """The command compiles for two TPUs, and a second run uses the stored results."""
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["plan", "--targets", "v5e,v6e", "--vary", "width=64,128", "--samples", "8", "--results", "results"]
    outs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "torch_xla.aot", *words, "train.py"],
            cwd=tmp_path, env=scripts.environment() | {"PYTHONPATH": str(scripts.ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and done.stdout.count(" fits ") == 4, done.stderr
        outs.append(done.stdout.splitlines())
    assert outs[0][:5] == outs[1][:5] and outs[1][-1].endswith(", 4 of them from stored results")


def test_exit_code_of_results() -> None:
    assert [command.exit_code(results) for results in ([], ["failed", "fits"])] == [1, 0]
