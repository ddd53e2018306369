"""Environment variables for diagnostics, each in a separate process: files, streams, analyses, logs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.diagnostics.test_metrics import parse
from tests.support.helpers import run_script
from torch_xla._engine.base import logging_config
from torch_xla._engine.base.settings import Settings

TRAIN = """
    import torch, torch_xla
    w = torch.ones(3, 3).to("xla")
    for step in range(3):
        w.mul_(1.5)
        torch_xla.sync()
    """


def _blocks(text: str) -> list[tuple[int, str]]:
    """Return (step, report) of each block of a metrics file. Fails on any other content."""
    parts = re.split(r"^\[MetricsData; step=(\d+)\]\n", text, flags=re.MULTILINE)
    assert parts[0] == "" and len(parts) % 2 == 1
    assert all(report.endswith("\n\n") for report in parts[2::2])
    return [(int(n), report[:-1]) for n, report in zip(parts[1::2], parts[2::2], strict=True)]


def test_metrics_file(tmp_path: Path) -> None:
    """The report is appended at every step; each of several processes writes a separate file."""
    file = tmp_path / "metrics"
    file.write_text("[MetricsData; step=7]\nCounter: MarkStep\n  Value: 8\n\n")  # from an earlier run
    more = f'\n    from torch_xla.debug import metrics_saver\n    metrics_saver.save_metrics("{tmp_path}/asked")\n'
    run_script(TRAIN + more, XLA_METRICS_FILE=str(file))
    earlier, *blocks = _blocks(file.read_text())
    assert earlier == (7, "Counter: MarkStep\n  Value: 8\n") and [step for step, _ in blocks] == [0, 1, 2]
    for step, report in blocks:
        assert ("Counter", "MarkStep") in parse(report)
        assert f"Counter: MarkStep\n  Value: {step + 1}\n" in report
    assert [step for step, _ in _blocks((tmp_path / "asked").read_text())] == [3]
    run_script(TRAIN, XLA_METRICS_FILE=str(file), WORLD_SIZE="2", LOCAL_RANK="1", RANK="1")
    assert len(_blocks(file.read_text())) == 4, "untouched"
    assert len(_blocks((tmp_path / "metrics.1").read_text())) == 3


def test_metrics_to_a_stream_and_steplog() -> None:
    out = run_script(TRAIN, check=False, XLA_METRICS_FILE="STDOUT", XLA_EMIT_STEPLOG="1")
    assert len(_blocks(out.stdout)) == 3
    assert out.stderr.splitlines() == ["torch_xla.core.xla_model::mark_step"] * 3


def test_sync_wait() -> None:
    """With XLA_SYNC_WAIT, a sync returns when the device has finished."""
    code = """
        import torch, torch_xla
        from torch_xla._engine import recorder
        from torch_xla._engine.execution import executor
        ready = []
        w = torch.rand(1500, 1500).to("xla")
        for _ in range(3):
            y = w
            for _ in range(6):
                y = y @ w / 1500
            torch_xla.sync()
            ready.append(all(b.is_ready() for b in recorder.bindings().live_buffers(0)))
        print(ready)
        """
    assert run_script(code, XLA_SYNC_WAIT="1").stdout == "[True, True, True]\n"
    assert "False" in run_script(code).stdout, "the same program runs behind its sync without it"


_RULE = "=" * 80
_GRAPH = r"""{0} Analysis: ={{80}}
{0} Analysis: {0} Cause
{0} Analysis:   (?P<cause>.+)
{0} Analysis: Graph Info:
{0} Analysis:   Graph Hash: (?P<hash>[0-9a-f]{{32}})
{0} Analysis:   Number of Graph Inputs: (?P<inputs>\d+)
{0} Analysis:   Number of Graph Outputs: (?P<outputs>\d+)
{0} Analysis: Python Frame Triggered Execution:
(?P<frames>(?:{0} Analysis:   .+ \(.+:\d+\)\n)+){0} Analysis: -{{80}}
{0} Analysis: ={{80}}
"""
COMPILATION, EXECUTION = (re.compile(_GRAPH.format(name)) for name in ("Compilation", "Execution"))
POST = re.compile(
    r"Post Compilation Analysis: ={80}\n"
    + "".join(
        rf"Post Compilation Analysis: {name}: \d+\.\d{{6}} GB\n"
        for name in ("Graph input size", "Graph output size", "Aliased Input size", "Intermediate tensor size",
                     "Compiled program size")
    )
    + r"Post Compilation Analysis: -{80}\nPost Compilation Analysis: ={80}\n"
)  # fmt: skip

LOOK = """
    import torch, torch_xla
    w = torch.ones(3, 3).to("xla")
    def step():
        global w
        w = w * 1.5
        torch_xla.sync()
    for _ in range(2):
        step()
    print((w + 1).sum().item())
    torch.ones(3).to("xla").nonzero()
    """


def test_analyses() -> None:
    code = "import warnings; warnings.simplefilter('ignore')\n" + _dedented(LOOK)
    out = run_script(code, check=False, fresh="prints the whole stack", PT_XLA_DEBUG="1")
    text = out.stderr
    compiled, executed = list(COMPILATION.finditer(text)), list(EXECUTION.finditer(text))
    assert len(compiled) == len(POST.findall(text)) and len(compiled) < len(executed)
    assert compiled[0]["cause"] == "user torch_xla.sync" and compiled[0]["outputs"] == "1"
    frames = [line.split(":   ")[1] for line in compiled[0]["frames"].splitlines()]
    assert frames[0].startswith("sync (") and [f.split(" (")[0] for f in frames[1:]] == ["step", "<module>"]
    assert compiled[1]["cause"] == "value read (.item(), print, ...)"
    assert executed[0]["hash"] == executed[1]["hash"] == compiled[0]["hash"]
    rest = POST.sub("", EXECUTION.sub("", COMPILATION.sub("", text)))
    assert "pt-xla-profiler: Op(s) not lowered: aten::nonzero" in rest
    assert re.search(r"^pt-xla-profiler:   aten::nonzero: 1$", rest, re.MULTILINE)
    assert all(line.startswith("pt-xla-profiler: ") for line in rest.splitlines())


def test_analysis_of_compilations_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "analysis"
    out = run_script(TRAIN, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=str(file), PT_XLA_DEBUG_MAX_FRAME="1")
    text = file.read_text()
    assert out.stderr == "" or "building" in out.stderr
    assert len(COMPILATION.findall(text)) == 1 and "Execution Analysis" not in text
    assert COMPILATION.search(text)["frames"].count("\n") == 1
    assert POST.sub("", COMPILATION.sub("", text)) == ""


def test_logs_and_the_default_explanation() -> None:
    code = """
        import torch, torch_xla
        for size in (3, 4, 5, 6, 7, 8):
            (torch.ones(size).to("xla") * 2).cpu()
        """
    out = run_script(code, check=False, TORCH_XLA_LOGS="compile,+transfer,-fallback")
    lines = out.stderr.splitlines()
    assert sum("torch_xla.compile INFO: 1 ops in " in line for line in lines) == 6
    assert sum("torch_xla.transfer INFO: to xla:0: torch.float32[" in line for line in lines) == 6
    assert sum("torch_xla.recompilation WARNING: torch_xla: recompiled the graph at " in line for line in lines) == 1
    assert len(lines) - lines.index(next(line for line in lines if "recompilation WARNING" in line)) > 4
    out = run_script(code, check=False)
    assert out.stderr.startswith("torch_xla: recompiled the graph at ") and out.stderr.count("torch_xla: ") == 1
    assert out.stderr.endswith("\n  See: torch-xla explain recompilation\n")
    assert max(map(len, out.stderr.splitlines())) <= 80


def test_unknown_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_LOGS", "+graphs")
    monkeypatch.setattr(logging_config, "settings", Settings())
    with pytest.raises(ValueError, match="TORCH_XLA_LOGS: unknown log 'graphs'; use all, compile"):
        logging_config.configure_logging()


def _dedented(code: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in code.splitlines())
