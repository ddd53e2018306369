"""Tests the figures of scripts/naming_report.py, and the import graph that it shares with scripts/call_walk.py."""

from __future__ import annotations

from pathlib import Path

import naming_report
import pytest
from lint_rules.import_graph import cycles, import_graph, levels

#: A package in which rules and core import each other for types only, and a function closes a cycle between packages.
PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/low/__init__.py": "",
    "pkg/low/base.py": "def is_spmd(): ...\ndef late():\n    from pkg.high import top\n",
    "pkg/high/__init__.py": "",
    "pkg/high/core.py": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from pkg.high.rules import Rule\n"
    "def of(): ...\ndef place(): ...\nclass Graph: ...\n",
    "pkg/high/rules.py": "from pkg.high import core\nfrom pkg.low.base import is_spmd\n"
    "class Graph: ...\nclass Rule: ...\ndef place(): return is_spmd()\n",
    "pkg/high/top.py": "import pkg.high.rules\nfrom pkg.low import base\n"
    "def run_graph(): return base.is_spmd() or base.is_spmd()\n",
}


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    for name, text in PACKAGE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(tmp_path.rglob("*.py"))


def test_names(paths: list[Path]) -> None:
    bare = naming_report.bare_names(paths)
    assert (round(bare.value, 1), len(bare.details), bare.met) == (round(100 / 6, 1), 1, False)
    shared = naming_report.shared_names(paths)
    assert (round(shared.value, 1), shared.details) == (round(200 / 6, 1), ["place: core.py, rules.py"])
    classes = naming_report.repeated_classes(paths)
    assert (classes.value, classes.details, classes.met) == (1, ["Graph: core.py, rules.py"], True)
    calls = naming_report.calls_of("is_spmd", paths, goal=2)
    assert (calls.details, calls.met) == (["rules.py: 1", "top.py: 2"], True)


def test_cycles(paths: list[Path], tmp_path: Path) -> None:
    top = import_graph(paths, tmp_path)
    assert cycles(top) == [["pkg.high.core", "pkg.high.rules"]]
    assert levels(top) == {"pkg": 0, "pkg.high": 0, "pkg.low": 0, "pkg.low.base": 0} | {
        "pkg.high.core": 1,
        "pkg.high.rules": 1,
        "pkg.high.top": 2,
    }
    across = ["pkg.high.core", "pkg.high.rules", "pkg.high.top", "pkg.low.base"]
    assert cycles(import_graph(paths, tmp_path, functions=True)) == [across]
    inside, between, packages = naming_report.import_cycles(paths, tmp_path, "pkg")
    assert (inside.value, between.value, packages.details) == (0, 1, ["2 modules: pkg.high, pkg.low"])


def test_command(monkeypatch: pytest.MonkeyPatch, paths: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(naming_report, "tracked_files", lambda *_: paths)
    monkeypatch.setattr(naming_report, "import_cycles", lambda _: [])
    monkeypatch.setattr("sys.argv", ["naming_report", "--check", "--details"])
    assert naming_report.main() == 1
    printed = capsys.readouterr().out
    assert "7 modules, 6 module-level functions" in printed and printed.count("MISSED") == 2
    assert "core.py:4: of\n" in printed
