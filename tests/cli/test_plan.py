"""``torch-xla plan``: the table and the exit code, from reports of a stand-in for ``torch-xla aot``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from torch_xla.cli import entry, plan


def report(needed: int, seconds: float) -> dict[str, Any]:
    """Return the fields of an aot report that the table uses."""
    program = {"memory": {"required_bytes": needed}, "work": {"seconds": seconds}, "runs": 4}
    return {"target": {"chips": 4, "hbm_bytes": 16 * 10**9}, "programs": [program], "steps": 2}


def test_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    results = {"v5e:2x2": (0, report(2 * 10**9, 0.01)), "v5e": (3, report(20 * 10**9, 0.04)), "h100": (2, None)}
    commands = []

    def compile_(command: Sequence[str], file: Path) -> tuple[int, dict[str, Any] | None]:
        commands.append(list(command))
        return results[command[2]]

    monkeypatch.setattr(plan, "_compile", compile_)
    assert entry.main(["plan", "--targets", "v5e:2x2,v5e", "--steps", "2", str(script), "--batch", "8"]) == 3
    heading, first, second, *_ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["target", "chips", "result", "needs", "per", "chip", "has", "time", "per", "step"]
    assert first.split() == ["v5e:2x2", "4", "fits", "2.0", "GB", "16.0", "GB", "20.00", "ms"]
    assert second.split() == ["v5e", "4", "does", "not", "fit", "20.0", "GB", "16.0", "GB", "80.00", "ms"]
    assert commands[0] == ["--abstract", "--target", "v5e:2x2", "--steps", "2", str(script), "--batch", "8"]
    assert entry.main(["plan", "--targets", "v5e:2x2", str(script)]) == 0
    assert entry.main(["plan", "--targets", "v5e,h100", str(script)]) == 2
    assert "not compiled" in capsys.readouterr().out


def test_sigterm_ends_the_compiling_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nkill -TERM $PPID\nexec sleep 60\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(compiler))
    with pytest.raises(SystemExit) as ended:
        plan._compile(["--target", "v5e", "train.py"], tmp_path / "report.json")
    assert ended.value.code == 143
