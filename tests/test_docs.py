"""What the documents show runs: every ```python block of the README and of docs/, and the example.

A block that is no program (a signature, a fragment) has the line ``<!-- not run -->`` right before it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, run_script

from tests import torch_versions
from torch_xla._engine.base import versions

_BLOCK = re.compile(r"(<!-- not run -->\n)?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(p for folder in ("torch_xla", "tests", "benchmarks") for p in (ROOT / folder).rglob("README.md")),
]


def _programs() -> list[object]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        for block in _BLOCK.finditer(text):
            line = text[: block.start(2)].count("\n") + 1
            if block[1] is None:
                found.append(pytest.param(block[2], id=f"{path.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize("program", _programs())
def test_block_runs(program: str) -> None:
    """Without an error, and without a word on stderr."""
    run_script(program)


def test_readme_shows_a_program() -> None:
    """Guards the pattern above: a README without a block would pass."""
    assert any("README.md" in str(p) for p in _programs())


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in DOCUMENTS])
def test_links_lead_somewhere(path: Path) -> None:
    """Links inside the repository name files that exist."""
    missing = [link for link in _LINK.findall(path.read_text()) if not (path.parent / link).exists()]
    assert not missing


def test_example_trains(tmp_path: Path) -> None:
    """One epoch of the digits; `make demo` runs all of them and checks the result."""
    plot = tmp_path / "digits.png"
    command = [sys.executable, "-W", "error", str(ROOT / "examples/train_digits.py"), "--epochs", "1"]
    # Without the flags of conftest.py: training with a program that is not optimized takes longer than optimizing it.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "--plot", str(plot)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    accuracy = re.search(r"test accuracy: ([\d.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.8
    assert plot.read_bytes().startswith(b"\x89PNG")
    on_cpu = set(re.findall(r"Counter: (aten::\S+)", done.stdout)) - {"aten::_local_scalar_dense"}
    assert not on_cpu


def test_each_tested_release_has_a_run_behind_it() -> None:
    rows = [line.strip("| ").split(" | ") for line in torch_versions.TABLE.read_text().splitlines() if "passed" in line]
    good = [row for row in rows if row[4].split(", ")[1] == "0 failed"]
    for name, column in (("torch", 0), ("Python", 1), ("jax", 2)):
        assert {versions.minor(row[column]) for row in good} >= set(versions.TESTED[name]), name
