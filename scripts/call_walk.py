"""Traces the calls of one compilation, from the lookup in the program cache to the launched program.

    python scripts/call_walk.py             how many files are visited, and how often the walk climbs back up
    python scripts/call_walk.py --details   with every visit; ^ marks a climb
    python scripts/call_walk.py --check     exits with 1 if a goal is missed

A visit is a call of a function in another file; each pair of caller and callee counts once, so that loops do not
matter. A return is a visit of a file that was visited before, and a climb is a return to a file above the last visited
one. A file is above what it imports, directly or not.

Helpers do not carry the graph on: packages that stand below all that compiles (LEAF_PACKAGES) are left out, but counted
in the second line. With them left out, the figures are close to those that a reader of the code counts by hand.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from lint_rules.import_graph import import_graph, levels, module_name
from lint_rules.sources import ROOT, tracked_files

#: Where the walk begins and ends: module and qualified name of a function. The first module that exists counts.
ENTRIES = (("torch_xla._engine.compilation.program_cache", "lookup_program"),)
EXITS = (("torch_xla._engine.execution.executor", "_launch"),)

LEAF_PACKAGES = tuple(
    f"torch_xla._engine.{name}." for name in ("base", "compat", "device", "job", "lowering", "recorder")
)

#: Goals: visited files and climbs, without leaf packages.
MAX_FILES, MAX_CLIMBS = 35, 5


@dataclass
class Walk:
    """The modules that were called from other modules, in this order."""

    levels: Mapping[str, int]
    visits: list[str] = field(default_factory=list)

    def add(self, module: str) -> None:
        if self.visits[-1:] != [module]:
            self.visits.append(module)

    def without(self, prefixes: tuple[str, ...]) -> Walk:
        shorter = Walk(self.levels)
        for module in self.visits:
            if not f"{module}.".startswith(prefixes):
                shorter.add(module)
        return shorter

    @property
    def files(self) -> set[str]:
        return set(self.visits)

    @property
    def returns(self) -> int:
        return len(self.visits) - len(self.files)

    def climbs(self) -> list[int]:
        """The positions of visits that return to a file above the one visited before."""
        found, seen = [], set(self.visits[:1])
        for i in range(1, len(self.visits)):
            module = self.visits[i]
            if module in seen and self.levels[module] > self.levels[self.visits[i - 1]]:
                found.append(i)
            seen.add(module)
        return found

    def __str__(self) -> str:
        counts = (len(self.visits), len(self.files), self.returns, len(self.climbs()))
        return "{:4} visits of {:3} files, {:4} returns, {:4} climbs back up".format(*counts)

    def details(self) -> Iterator[str]:
        climbs = set(self.climbs())
        for i, module in enumerate(self.visits):
            yield f"  {'^' if i in climbs else ' '} level {self.levels[module]:2}  {module}"


@contextmanager
def trace_calls(walk: Walk, modules: Mapping[str, str], entry: tuple[str, str], end: tuple[str, str]) -> Iterator[None]:
    """Notes the calls of this thread from a function's call to another one's return; ``modules`` are by file name."""
    running, finished = False, False
    calls: set[tuple[CodeType | None, CodeType]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal running, finished
        module = modules.get(frame.f_code.co_filename)
        if module is None or finished or event not in {"call", "return"}:
            return
        function = (module, frame.f_code.co_qualname)
        running = running or (event == "call" and function == entry)
        if event == "return":
            finished = running and function == end
        elif running:
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename not in modules:
                caller = caller.f_back  # through jax and the recorder
            call = (caller.f_code if caller else None, frame.f_code)
            if call not in calls and (caller is None or caller.f_code.co_filename != frame.f_code.co_filename):
                walk.add(module)
            calls.add(call)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    if not finished:
        raise RuntimeError(f"no walk from {'.'.join(entry)} to {'.'.join(end)}: adapt ENTRIES and EXITS to the code")


def trace_compilation(run: Callable[[], object]) -> Walk:
    """Traces the compilation that ``run`` causes."""
    paths = tracked_files("torch_xla/*.py")
    names = {str(path): module_name(path, ROOT) for path in paths}
    entry, end = (next(one for one in found if one[0] in names.values()) for found in (ENTRIES, EXITS))
    walk = Walk(levels(import_graph(paths, ROOT, functions=True)))
    with trace_calls(walk, names, entry, end):
        run()
    return walk


def compile_example() -> Walk:
    """The walk of a graph with four operations, after another one has imported and started everything."""
    import torch

    import torch_xla

    def prepare(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        operands = torch.ones(rows, 4, device="xla"), torch.ones(4, 3, device="xla")
        torch_xla.sync()
        return operands

    left, right = prepare(2)
    result = (left @ right).tanh().amax()
    torch_xla.sync()
    left, right = prepare(5)
    result = (left @ right + 1).relu().sum()
    walk = trace_compilation(torch_xla.sync)
    assert result.item() == 75
    return walk


def main() -> int:
    parser = argparse.ArgumentParser(description="Traces the calls of one compilation.")
    parser.add_argument("--details", action="store_true", help="print every visit")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_PERSISTENT_CACHE_PATH"] = str(Path(folder) / "programs")  # empty: the program is compiled
        everything = compile_example()
    walk = everything.without(LEAF_PACKAGES)
    if options.details:
        print(*walk.details(), sep="\n")
    print(f"one compilation: {walk}   goals: {MAX_FILES} files, {MAX_CLIMBS} climbs")
    print(f"with helpers:    {everything}")
    return int(options.check and (len(walk.files) > MAX_FILES or len(walk.climbs()) > MAX_CLIMBS))


if __name__ == "__main__":
    sys.exit(main())
