"""Estimates step, startup and checkpoint costs of Llama presets on 8 to 4,096 H100s, from compiled programs.

    python -m benchmarks.scaling                          the tables of docs/project/scaling.md
    python -m benchmarks.scaling --json                   their numbers
    python -m benchmarks.scaling --host-mtbf 20000        with another assumption
    python -m benchmarks.scaling --compile                compiles the programs again; needs jax's CUDA plugin, no GPU
    python -m benchmarks.scaling --start                  runs the simulated startups again
    python -m benchmarks.scaling --write                  writes the tables into the page

What was compiled and measured is in benchmarks/scaling/measured.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scaling import collectives, estimates, tables
from benchmarks.scaling.checkpoints import Storage
from benchmarks.scaling.programs import StepProgram
from benchmarks.scaling.startup import StartupRun

MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "project" / "scaling.md"
#: Preset and mesh of the programs that are compiled, for H100s.
MESHES = (
    ("8b", "1x8x1"), ("8b", "1x64x1"), ("8b", "1x256x1"), ("8b", "1x512x1"), ("8b", "2x8x1"), ("8b", "4x8x1"),
    ("8b", "16x8x1"), ("70b", "1x64x1"), ("70b", "2x64x1"), ("70b", "4x64x1"),
)  # fmt: skip
#: Numbers of processes of the simulated startups, and the bytes of their executable.
PROCESSES, EXECUTABLE = "16,32,64,128,256", 1_000_000


def load() -> tuple[list[StepProgram], list[StartupRun]]:
    """Return what was compiled and measured."""
    data = json.loads(MEASURED.read_text())
    return [StepProgram.from_json(row) for row in data["programs"]], [StartupRun(**row) for row in data["startup"]]


def save(name: str, rows: Sequence[Any]) -> None:
    """Replace a part of what was measured."""
    data = json.loads(MEASURED.read_text()) if MEASURED.exists() else {"programs": [], "startup": []}
    MEASURED.write_text(json.dumps(data | {name: rows}, indent=1) + "\n")


def _run(module: str, *words: str) -> Any:
    command = [sys.executable, "-m", f"benchmarks.scaling.{module}", *words]
    print(*command, file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compile_programs() -> list[Any]:
    """Compile each program in a process."""
    found = []
    for preset, mesh in MESHES:
        chips = StepProgram.count_chips(mesh)
        found.append(_run("programs", "--target", f"h100:{chips}", "--preset", preset, "--mesh", mesh))
    return found


def insert_tables(text: str, found: dict[str, str]) -> str:
    """Return the text of a page with its tables replaced.

    Raises:
      ValueError: the page does not have exactly one place for a table.
    """
    for name, lines in found.items():
        start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        count = text.count(start)
        if count != 1:
            raise ValueError(f"the page has {count} places for the table {name!r}")
        before, _, rest = text.partition(start)
        text = before + start + lines + "\n" + end + rest.partition(end)[2]
    return text


def to_numbers(
    programs: Sequence[StepProgram], runs: Sequence[StartupRun], fabric: collectives.Fabric, storage: Storage
) -> dict[str, Any]:
    """Return the estimates as plain data."""
    steps = estimates.estimate_steps(programs, fabric)
    costs = estimates.estimate_checkpoints(programs, fabric, storage)
    return {
        "fabric": dataclasses.asdict(fabric),
        "storage": dataclasses.asdict(storage),
        "steps": [dataclasses.asdict(row) | {"seconds": row.seconds, "overlapped": row.overlapped} for row in steps],
        "predictions": [dataclasses.asdict(row) for row in estimates.compare_predictions(programs)],
        "startup": [
            {"chips": chips, "compile_seconds": base.compile_seconds} | dataclasses.asdict(found)
            for chips, base, found in estimates.estimate_startups(programs, runs, fabric)
        ],
        "checkpoints": [
            {"layout": dataclasses.asdict(layout), "chips": chips} | dataclasses.asdict(cost)
            for layout, chips, cost in costs
        ],
    }


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    for name in ("json", "compile", "start", "write"):
        add(f"--{name}", action="store_true")
    for assumption in (collectives.H100, Storage()):
        for field in dataclasses.fields(assumption):
            if field.type == "float":
                add(f"--{field.name.replace('_', '-')}", type=float, default=getattr(assumption, field.name))
    return parser.parse_args(words)


def main() -> None:
    """Run the command."""
    options = parse_arguments()
    if options.compile:
        save("programs", compile_programs())
    if options.start:
        save("startup", _run("startup", "--processes", PROCESSES, "--bytes", str(EXECUTABLE)))
    given = vars(options)
    fabric = dataclasses.replace(
        collectives.H100, **{name: given[name] for name in ("network_bandwidth", "hop", "network_hop")}
    )
    storage = Storage(**{field.name: given[field.name] for field in dataclasses.fields(Storage)})
    programs, runs = load()
    if options.json:
        print(json.dumps(to_numbers(programs, runs, fabric, storage), indent=1))
        return
    found = tables.all_tables(programs, runs, fabric, storage)
    if options.write:
        PAGE.write_text(insert_tables(PAGE.read_text(), found))
    print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
