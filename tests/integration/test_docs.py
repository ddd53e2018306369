"""Run the documentation: every ```python block of the README and of docs/, and the example.

A block that is not a program (a signature, a fragment) has the line ``<!-- not run -->`` directly before it. The blocks
of a page with ``<!-- one program -->`` form one program, except those with another mark: ``<!-- with NAME=VALUE -->``
sets variables, ``<!-- as a file -->`` (``, with NAME=VALUE``) is for programs that start processes, and
``<!-- with clients -->`` for those that need other libraries, which `make test-clients` runs, and
``<!-- with warnings of torch -->`` for those whose output contains warnings of torch itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import scripts
from tests.support.helpers import ROOT, run_script
from tests.tools import version_grid
from torch_xla._engine.compat import versions

_MARKS = r"not run|with clients|as a file(?:, with .*)?|with \w+=.*|with warnings of torch"
_BLOCK = re.compile(rf"(?:<!-- ({_MARKS}) -->\n)?```python\n((?:.*\n)*?)```$", re.MULTILINE)
_ONE_PROGRAM = "\n<!-- one program -->\n"
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
ERROR_PAGES = ROOT / "torch_xla" / "_engine" / "explain" / "pages"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ERROR_PAGES.glob("*.md")),
    *sorted(p for name in ("torch_xla", "tests", "benchmarks", "examples") for p in (ROOT / name).rglob("README.md")),
]


def _programs() -> list[object]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        blocks = [(text[: b.start(2)].count("\n") + 1, b[1] or "", b[2]) for b in _BLOCK.finditer(text)]
        if _ONE_PROGRAM in text:
            parts = [(line, program) for line, mark, program in blocks if not mark]
            blocks = [block for block in blocks if block[1]]
            blocks.insert(0, (parts[0][0], "", "\n".join(program for _, program in parts)))
        for line, mark, program in blocks:
            if mark not in ("not run", "with clients"):
                found.append(pytest.param(mark, program, id=f"{path.relative_to(ROOT)}:{line}"))
    return found


@pytest.mark.parametrize(("mark", "program"), _programs())
def test_block_runs(mark: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs without an error and without output on stderr."""
    monkeypatch.chdir(tmp_path)  # for files that it writes
    variables = dict(re.findall(r"(\w+)=(\S+)", mark))
    if mark.startswith("as a file"):
        # Fork its processes: an interpreter takes five seconds of a core (test_spawn.py starts some).
        program, calls = re.subn(r"(xmp\.spawn|torch_xla\.launch)\((\w+)", r'\1(\2, start_method="fork"', program)
        assert calls == 1
    variables = {"TORCH_XLA_COMPILE_POLICY": "auto"} | variables  # as users have it
    if mark == "with warnings of torch":
        done = run_script(f"import warnings\nwarnings.simplefilter('default')\n{program}", check=False, **variables)
        assert done.returncode == 0, done.stderr[-4000:]
    else:
        run_script(program, **variables)


def test_marks_are_known() -> None:
    """A misspelled mark would leave its block to other tests, or to none."""
    for path in DOCUMENTS:
        for mark in re.findall(r"<!-- (.*) -->\n```python", path.read_text()):
            assert re.fullmatch(_MARKS, mark), (path, mark)


def test_pictures_are_up_to_date() -> None:
    """The pictures equal the output of scripts/docs/pictures.py, and each is used in a page."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "docs" / "pictures.py")
    assert spec is not None and spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = pictures
    spec.loader.exec_module(pictures)
    kept = {path.stem: path.read_text() for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert kept == {name: draw().text for name, draw in pictures.PICTURES.items()}
    shown = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert all(f"pictures/{name}.svg)" in shown for name in kept)


def _rows(path: Path, start: str) -> list[list[str]]:
    """Return the cells of the table whose first line starts with ``start``."""
    text = path.read_text()
    lines = text[text.index(start) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_readme_figures_match_benchmarks() -> None:
    names, _, *measured = _rows(ROOT / "docs" / "project" / "benchmarks.md", "| a step in a row")
    columns = [0, *map(names.index, ("here, ms", "eager CPU", "inductor", "jax"))]
    _, _, *shown = _rows(ROOT / "README.md", "| | torch_xla | eager torch | torch.compile | JAX (hand-written) |")
    assert shown == [[row[column] for column in columns] for row in measured]


def test_each_file_of_the_recorder_is_in_its_readme() -> None:
    folder = ROOT / "torch_xla" / "_engine" / "recorder" / "csrc"
    named = {name.partition(".")[0] for name in re.findall(r"`([\w./]+)`", (folder / "README.md").read_text())}
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.*") if path.suffix in (".cpp", ".h"))
    assert {str(path) for path in files} <= named


def test_readme_shows_a_program() -> None:
    """Check the pattern above: a README without a block would pass."""
    assert any("README.md" in str(p) for p in _programs())


@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in DOCUMENTS])
def test_links_resolve(path: Path) -> None:
    """Links inside the repository point to existing files."""
    missing = [link for link in _LINK.findall(path.read_text()) if not _link_target(path, link).exists()]
    assert not missing


def _link_target(path: Path, link: str) -> Path:
    if path.parent == ERROR_PAGES and "/" in link:  # links start where the site shows the page
        return Path(os.path.normpath(ROOT / "docs" / "reference" / "errors" / link))
    return path.parent / link


def test_example_trains(tmp_path: Path) -> None:
    """Train one epoch of the digits; `make demo` trains all of them and checks the result."""
    plot = tmp_path / "digits.png"
    command = [*scripts.PYTHON, "-W", "error", str(ROOT / "examples/train_digits.py"), "--epochs", "1"]
    # Without the flags of conftest.py: training an unoptimized program takes longer than optimizing it.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | scripts.server_variables()
    done = subprocess.run([*command, "--plot", str(plot)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    accuracy = re.search(r"test accuracy: ([\d.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.8
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^eager PyTorch on the CPU: [\d,]+ images/s", done.stdout, re.MULTILINE)
    assert "CPU fallbacks: none\n" in done.stdout
    assert f"picture: {plot}\n" in done.stdout
    assert len(done.stdout.splitlines()) < 15


def test_each_tested_release_has_a_run() -> None:
    good = [run for run in version_grid.read_runs(version_grid.TABLE.read_text()) if run.passed]
    for name in ("torch", "Python", "jax"):
        assert {getattr(run, name.lower()) for run in good} >= set(versions.TESTED[name]), name
