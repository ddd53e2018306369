"""Runs the tests with another torch, jax or Python in a separate environment; writes docs/reference/versions.md.

    python -m tests.tools.torch_versions 2.15.0 [--jax 0.12.0.1] [--python python3.13] [--core] [-- arguments of pytest]

This is ``make test-torch``. The environment is ``.venv-torch-<release>[-jax<release>]-py<version>`` beside ``.venv``;
``make clean`` removes it. Each torch except the one that ``requirements-dev.txt`` pins installs 5 GB of CUDA libraries,
which torch loads but these tests do not use. The script needs only Python's standard library.
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

from tests.tools import version_grid
from tests.tools.version_grid import minor

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements-dev.txt"
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
    """A virtual environment of one torch, one Python and one jax: the pinned one if empty."""

    release: str
    python: str  # "3.11"
    jax: str = ""

    @property
    def folder(self) -> Path:
        jax = f"-jax{self.jax}" if self.jax else ""
        return ROOT / f".venv-torch-{self.release}{jax}-py{self.python}"

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
        if self.jax:
            free = re.sub(r"^jax==.*$", f"jax=={self.jax}", free, flags=re.MULTILINE)
        return re.sub(r"^torch==.*$", f"torch=={self.release}", free, flags=re.MULTILINE)

    def run(self, arguments: list[str]) -> tuple[int, str]:
        """Return the exit code of pytest, and its summary: ``3016 passed, 12 skipped``."""
        report = self.folder / "junit.xml"
        report.unlink(missing_ok=True)
        command = [self.interpreter, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        # make() compiles no bytecode: the first import of a module stores it, or each process compiles torch and jax.
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
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
    """Write a run of (torch, Python, jax) to the grid, unless pytest wrote no result."""
    if "passed" in outcome:
        torch, python, jax = (minor(release) for release in versions)
        run = version_grid.Run(torch, jax, python, tests, outcome, today.isoformat())
        version_grid.TABLE.write_text(version_grid.add_run(version_grid.TABLE.read_text(), run))


def _name(core: bool, arguments: list[str]) -> str:
    """Return the name of the tests in the table."""
    given = [argument for argument in arguments if argument not in ("-n", "auto") and not argument.isdigit()]
    return " ".join([*(["core"] if core else []), *given]) or "all"


def python_version(base: str) -> str:
    """Return the minor version of an interpreter, such as 3.13."""
    code = "import sys; print(f'{sys.version_info[0]}.{sys.version_info[1]}')"
    return subprocess.run([base, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments at ``--``: argparse assigns the arguments after it to a preceding list option."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def main() -> int:
    """Run the tests and return pytest's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.splitlines()[2].strip())
    parser.add_argument("release", help="of torch, as pip names it: 2.15.0")
    parser.add_argument("--python", default=sys.executable, help="the interpreter (default: this one)")
    parser.add_argument("--jax", default="", help="the release of jax (default: that of requirements-dev.txt)")
    parser.add_argument("--core", action="store_true", help="only the tests that depend most on torch")
    arguments, rest = split_arguments(sys.argv[1:])
    asked = parser.parse_args(arguments)
    environment = Environment(asked.release, python_version(asked.python), asked.jax)
    return run_tests(environment, asked.python, asked.core, rest)


def run_tests(environment: Environment, base: str, core: bool, arguments: list[str]) -> int:
    """Make the environment with the interpreter ``base``, run the tests, write the result; return its exit code."""
    environment.make(base)
    code, outcome = environment.run([*(CORE if core else ()), *arguments])
    versions = environment.versions()
    note(versions, _name(core, arguments), outcome, datetime.date.today())
    torch, python, jax = versions
    print(f"torch {torch}, jax {jax}, Python {python}: {outcome}; see {version_grid.TABLE.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
