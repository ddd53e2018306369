"""Runs the tests with each supported torch, jax and Python; writes docs/reference/versions.md.

    python -m tests.tools.version_matrix [--cells 2.15-0.12-3.13 ...] [--keep] [-- arguments of pytest]

This is ``make test-versions``. The oldest and the newest cell run all tests, the others the core set of
``torch_versions.py``. Cells run one after another, and the environment of each (6 GB) is removed after its tests,
unless ``--keep`` is given. A cell whose Python is not installed is listed and not run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tools import torch_versions
from tests.tools.version_grid import minor


@dataclass(frozen=True)
class Cell:
    """One combination of releases; ``full`` runs all tests."""

    torch: str
    jax: str
    python: str
    full: bool = False

    @property
    def name(self) -> str:
        """The minor releases, as ``--cells`` takes them: 2.15-0.12-3.13."""
        return f"{minor(self.torch)}-{minor(self.jax)}-{self.python}"


#: From the oldest to the newest. jax 0.11 and later need Python 3.12.
MATRIX = (
    Cell("2.11.0", "0.10.0", "3.11", full=True),
    Cell("2.12.1", "0.10.2", "3.11"),
    Cell("2.13.0", "0.10.2", "3.12"),
    Cell("2.13.0", "0.11.2", "3.13"),
    Cell("2.14.1", "0.11.2", "3.12"),
    Cell("2.14.1", "0.12.0.1", "3.13"),
    Cell("2.15.0", "0.10.2", "3.11"),
    Cell("2.15.0", "0.11.2", "3.13"),
    Cell("2.15.0", "0.12.0.1", "3.12"),
    Cell("2.15.0", "0.12.0.1", "3.13", full=True),
)


def find_python(version: str) -> str | None:
    """Return an interpreter of a minor version: from PATH, or installed by pyenv; None if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        # A shim of pyenv exists for each version that it knows, also where it does not run.
        if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    return None


def run_cell(cell: Cell, arguments: list[str], keep: bool) -> str:
    """Run the tests of a cell; return ``passed``, ``failed``, or why they did not run."""
    base = find_python(cell.python)
    if base is None:
        return f"not run: Python {cell.python} is not installed"
    environment = torch_versions.Environment(cell.torch, cell.python, cell.jax)
    try:
        code = torch_versions.run_tests(environment, base, not cell.full, arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"not run: {error}"
    finally:
        if not keep:
            shutil.rmtree(environment.folder, ignore_errors=True)
    return "failed" if code else "passed"


def main() -> int:
    """Run the cells; return 1 if one failed or did not run."""
    arguments, rest = torch_versions.split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], usage=__doc__.splitlines()[2].strip())
    names = [cell.name for cell in MATRIX]
    parser.add_argument("--cells", nargs="*", choices=names, metavar="TORCH-JAX-PYTHON", help=", ".join(names))
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    asked = parser.parse_args(arguments)
    cells = [cell for cell in MATRIX if not asked.cells or cell.name in asked.cells]
    results = {cell.name: run_cell(cell, rest, asked.keep) for cell in cells}
    print(*(f"{name}: {result}" for name, result in results.items()), sep="\n")
    return int(set(results.values()) != {"passed"})


if __name__ == "__main__":
    sys.exit(main())
