"""Reads and writes the grid of docs/reference/versions.md: the latest test run of each torch, jax and Python."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "versions.md"
GRID, END_OF_GRID = "<!-- grid -->", "<!-- end of grid -->"
_CELL = re.compile(r"(?P<tests>.+): (?P<outcome>\d+ passed, .+?), (?P<date>\d{4}-\d\d-\d\d)$")


@dataclass(frozen=True)
class Run:
    """A test run: minor releases, the tests (``all``, ``core`` or files), pytest's counts, and the ISO date."""

    torch: str
    jax: str
    python: str
    tests: str
    outcome: str  # "3016 passed, 0 failed, 12 skipped"
    date: str

    @property
    def passed(self) -> bool:
        """Whether no test failed."""
        return ", 0 failed" in self.outcome


def read_runs(document: str) -> list[Run]:
    """Return the runs of the grid in the document."""
    lines = document.partition(GRID)[2].partition(END_OF_GRID)[0].strip().splitlines()
    if not lines:
        return []
    pythons = [title.removeprefix("Python ") for title in _split(lines[0])[2:]]
    runs = []
    for line in lines[2:]:
        torch, jax, *cells = _split(line)
        for python, cell in zip(pythons, cells, strict=True):
            if found := _CELL.match(cell):
                runs.append(Run(torch, jax, python, found["tests"], found["outcome"], found["date"]))
    return runs


def add_run(document: str, run: Run) -> str:
    """Return the document with the run in the grid, in place of an earlier one of the same releases."""
    cell = (run.torch, run.jax, run.python)
    others = [old for old in read_runs(document) if (old.torch, old.jax, old.python) != cell]
    before, _, after = document.partition(GRID)
    return f"{before}{GRID}\n\n{format_grid([*others, run])}\n{END_OF_GRID}{after.partition(END_OF_GRID)[2]}"


def format_grid(runs: Iterable[Run]) -> str:
    """Return a table of torch and jax by Python."""
    cells = {(run.torch, run.jax, run.python): f"{run.tests}: {run.outcome}, {run.date}" for run in runs}
    pythons = sorted({python for _, _, python in cells}, key=_number)
    lines = [["torch", "jax", *(f"Python {python}" for python in pythons)], ["---"] * (len(pythons) + 2)]
    rows = {(torch, jax) for torch, jax, _ in cells}
    for torch, jax in sorted(rows, key=lambda row: [_number(name) for name in row]):
        lines.append([torch, jax, *(cells.get((torch, jax, python), "not run") for python in pythons)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def minor(release: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu``."""
    return ".".join(release.split(".")[:2])


def _split(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


def _number(release: str) -> int:
    return int(release.split(".")[1])
