"""Runs the tests with another torch or Python in a separate environment; writes docs/reference/versions.md.

    python -m tests.tools.torch_versions 2.15.0 [--python python3.13] [--core] [-- arguments of pytest]    (make
    test-torch)

The environment is ``.venv-torch-<release>-py<version>`` beside ``.venv``; ``make clean`` removes it. Each release
except
the one that ``requirements-dev.txt`` pins installs 5 GB of CUDA libraries, which torch loads but these tests do not
use. The script needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements-dev.txt"
TABLE = ROOT / "docs" / "reference" / "versions.md"
RUNS = "## All test runs"
GRID, END_OF_GRID = "<!-- grid -->", "<!-- end of grid -->"
#: The tests that depend most on the release of torch; they take a quarter of the time.
CORE = (
    "tests/base/test_compat.py",
    "tests/capture/test_func.py",
    "tests/capture/test_torch_compile.py",
    "tests/capture/test_tracing.py",
    "tests/integration/test_smoke.py",
    "tests/parallel/test_collectives.py",
    "tests/recorder/test_autograd.py",
    "tests/recorder/test_build.py",
    "tests/recorder/test_rng.py",
    "tests/recorder/test_tensors.py",
    "tests/recorder/test_views.py",
    "tests/torch_patches/test_serialization.py",
    *(
        f"tests/lowering/test_rules_{name}.py"
        for name in ("attention", "indexing", "linalg", "loss", "random", "views")
    ),
)
#: Bytes of an environment with CUDA's libraries, with space to unpack them.
NEEDED = 12 << 30


@dataclass(frozen=True)
class Environment:
    """A virtual environment of one torch and one Python."""

    release: str
    python: str  # "3.11"

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-torch-{self.release}-py{self.python}"

    @property
    def interpreter(self) -> str:
        return str(self.folder / "bin" / "python")

    def make(self, base: str) -> None:
        """Install torch and all other development requirements, unless they are installed. Raises OSError."""
        done = self.folder / ".ready"
        wanted = self._requirements()
        if done.exists() and done.read_text() == wanted:
            return
        if shutil.disk_usage(ROOT).free < NEEDED:
            raise OSError(f"less than {NEEDED >> 30} GB are free in {ROOT}: remove other .venv-torch-* folders first")
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(self.folder)], check=True)
        listed = self.folder / "requirements.txt"
        listed.write_text(wanted)
        # No pip cache, which would store the same GB again. No bytecode compilation: most modules are never imported.
        options = ["--quiet", "--no-cache-dir", "--no-compile", "--requirement", str(listed)]
        subprocess.run([self.interpreter, "-m", "pip", "install", *options], check=True)
        done.write_text(wanted)

    def _requirements(self) -> str:
        pinned = REQUIREMENTS.read_text()
        # torch 2.11 and 2.12 do not support the setuptools release that the others are tested with.
        free = re.sub(r"^setuptools==.*$", "setuptools", pinned, flags=re.MULTILINE)
        return re.sub(r"^torch==.*$", f"torch=={self.release}", free, flags=re.MULTILINE)

    def run(self, arguments: list[str]) -> tuple[int, str]:
        """Return the exit code of pytest, and its summary: ``3016 passed, 12 skipped``."""
        report = self.folder / "junit.xml"
        report.unlink(missing_ok=True)
        command = [self.interpreter, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode
        return code, _outcome(report)

    def versions(self) -> list[str]:
        """Return the exact releases: torch, Python, jax."""
        code = (
            "import sys, importlib.metadata as m; print(m.version('torch'), sys.version.split()[0], m.version('jax'))"
        )
        return subprocess.run([self.interpreter, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def _outcome(report: Path) -> str:
    if not report.exists():
        return "no result"
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    text = f"{counts['tests'] - failed - counts['skipped']} passed, {failed} failed"
    return text + (f", {counts['skipped']} skipped" if counts["skipped"] else "")


def note(versions: list[str], tests: str, outcome: str, today: datetime.date) -> None:
    """Add a row to the table, in place of an earlier one of the same releases and tests."""
    start = f"| {' | '.join(versions)} | {tests} |"
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith(start)]
    start_of_runs = lines.index(RUNS) if RUNS in lines else 0
    rows = [i for i, line in enumerate(lines) if line.startswith("|") and i >= start_of_runs]
    lines.insert(rows[-1] + 1, f"{start} {outcome} | {today.isoformat()} |")
    head, body = lines[: rows[0] + 2], lines[rows[0] + 2 :]
    end = next((i for i, line in enumerate(body) if not line.startswith("|")), len(body))
    runs = sorted(body[:end], key=_releases)
    TABLE.write_text(replace_grid("\n".join([*head, *runs, *body[end:]]) + "\n", runs))


def replace_grid(document: str, runs: list[str]) -> str:
    """Return the document with a grid of the runs, if it has the marks of one."""
    if GRID not in document:
        return document
    before, _, after = document.partition(GRID)
    return f"{before}{GRID}\n\n{format_grid(runs)}\n{END_OF_GRID}{after.partition(END_OF_GRID)[2]}"


def format_grid(runs: list[str]) -> str:
    """Return a table of torch by Python, with the latest run of each pair. Of one day, the last row is the latest."""
    latest: dict[tuple[str, str], tuple[str, str]] = {}
    for run in runs:
        torch, python, _, _, outcome, date = run.strip("| ").split(" | ")
        key = (_minor(torch), _minor(python))
        if key not in latest or date >= latest[key][1]:
            latest[key] = (_summarize(outcome), date)
    pythons = sorted({python for _, python in latest}, key=_number)
    lines = [["torch", *(f"Python {python}" for python in pythons)], ["---"] * (len(pythons) + 1)]
    for torch in sorted({torch for torch, _ in latest}, key=_number):
        cells = (latest.get((torch, python)) for python in pythons)
        lines.append([torch, *(f"{cell[0]}, {cell[1]}" if cell else "not run" for cell in cells)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _number(release: str) -> int:
    return int(release.split(".")[1])


def _summarize(outcome: str) -> str:
    counts = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", outcome)}
    if failed := counts.get("failed"):
        return f"{failed} of {failed + counts['passed']} tests fail"
    return f"ok ({counts['passed']} tests)" if "passed" in counts else outcome


def _releases(row: str) -> list[str]:
    return row.split(" | ")[:3]


def _name(core: bool, arguments: list[str]) -> str:
    """Return the name of the tests in the table."""
    given = [argument for argument in arguments if argument not in ("-n", "auto") and not argument.isdigit()]
    return " ".join([*(["core"] if core else []), *given]) or "all"


def _python_version(base: str) -> str:
    code = "import sys; print(f'{sys.version_info[0]}.{sys.version_info[1]}')"
    return subprocess.run([base, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments at ``--``: argparse assigns the arguments after it to a preceding list option."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def main() -> int:
    """Run the tests and return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.splitlines()[2].strip())
    parser.add_argument("release", help="of torch, as pip names it: 2.15.0")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("--core", action="store_true", help="only the tests that depend most on torch")
    ours, rest = _parted(sys.argv[1:])
    asked = parser.parse_args(ours)
    environment = Environment(asked.release, _python_version(asked.python))
    environment.make(asked.python)
    code, outcome = environment.run([*(CORE if asked.core else ()), *rest])
    note(environment.versions(), _name(asked.core, rest), outcome, datetime.date.today())
    print(f"torch {asked.release}, Python {environment.python}: {outcome}; noted in {TABLE.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
