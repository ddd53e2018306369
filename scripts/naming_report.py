"""Measures the names and the import structure of the package against the goals that this project has set itself.

python scripts/naming_report.py             the figures, and which goals are missed
python scripts/naming_report.py --details   with the functions, classes and files that are counted
python scripts/naming_report.py --check     exits with 1 if a goal is missed
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lint_rules import class_names, function_names
from lint_rules.import_graph import cycles, group, import_graph
from lint_rules.sources import ROOT, module_functions, tracked_files


@dataclass(frozen=True)
class Figure:
    """One measured value. ``details`` are the items that it counts."""

    title: str
    value: float
    goal: float
    details: Sequence[str] = ()
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value <= self.goal

    def __str__(self) -> str:
        value = f"{self.value:.1f}{self.unit}" if self.unit else f"{self.value:g}"
        return f"{self.title:<66} {value:>7}   goal <= {self.goal:g}{self.unit}{'' if self.met else '   MISSED'}"


def bare_names(paths: Sequence[Path]) -> Figure:
    """The share of module-level functions with a bare participle, preposition or pronoun as their name."""
    total = sum(1 for path in paths for _ in module_functions(path))
    details = [str(finding).partition(": name the")[0] for finding in function_names.check(paths)]
    return Figure(
        "functions named by a bare participle, preposition or pronoun", _percent(details, total), 0.5, details, " %"
    )


def shared_names(paths: Sequence[Path]) -> Figure:
    """The share of module-level functions with a name that a function of another file has, too."""
    files = defaultdict(set)
    for path in paths:
        for function in module_functions(path):
            files[function.name].add(path)
    shared = {name: places for name, places in files.items() if len(places) > 1}
    ranked = sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))
    details = [f"{name}: {', '.join(_short(path) for path in sorted(places))}" for name, places in ranked]
    in_others = [name for name, places in shared.items() for _ in places]
    total = sum(map(len, files.values()))
    return Figure(
        "functions that share their name with one in another file", _percent(in_others, total), 20, details, " %"
    )


def repeated_classes(paths: Sequence[Path]) -> Figure:
    """The names of classes, public or private, that several files define; upstream's interface is not counted."""
    places = {name: sorted({path for path, _ in found}) for name, found in class_names.definitions(paths).items()}
    details = [f"{name}: {', '.join(map(_short, files))}" for name, files in sorted(places.items()) if len(files) > 1]
    return Figure("class names defined in several files", len(details), 4, details)


def calls_of(name: str, paths: Sequence[Path], goal: float) -> Figure:
    """The files that call a function, by its name or as an attribute of a module."""
    details = []
    for path in paths:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", None) for func in calls]
        if name in names:
            details.append(f"{_short(path)}: {names.count(name)}")
    return Figure(f"files that call {name}()", len(details), goal, details)


def import_cycles(paths: Sequence[Path], root: Path = ROOT, engine: str = "torch_xla._engine") -> list[Figure]:
    """Cycles by all imports: at the top, below `if TYPE_CHECKING` and in functions."""
    graph = import_graph(paths, root, functions=True)
    found = cycles(graph)
    inside = [members for members in found if len({name.rpartition(".")[0] for name in members}) == 1]
    within = {name: targets for name, targets in graph.items() if name.startswith(f"{engine}.")}
    only_within = {name: {target for target in targets if target in within} for name, targets in within.items()}
    packages = cycles(group(only_within, engine.count(".") + 2))
    return [
        Figure("import cycles within a subpackage", len(inside), 0, _lines(inside)),
        Figure(
            "import cycles across subpackages", len(found) - len(inside), 0, _lines(m for m in found if m not in inside)
        ),
        Figure(f"import cycles of the packages of {engine}", len(packages), 0, _lines(packages)),
    ]


def _lines(found: Iterable[list[str]]) -> list[str]:
    return [f"{len(members)} modules: {', '.join(members)}" for members in found]


def _percent(items: Sequence[object], total: int) -> float:
    return 100 * len(items) / max(total, 1)


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)).removeprefix("torch_xla/") if path.is_relative_to(ROOT) else path.name


def figures(paths: Sequence[Path]) -> list[Figure]:
    return [
        bare_names(paths),
        shared_names(paths),
        repeated_classes(paths),
        calls_of("is_spmd", paths, 8),
        *import_cycles(paths),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures names and import structure of the package.")
    parser.add_argument("--details", action="store_true", help="list what is counted")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    paths = tracked_files("torch_xla/*.py")
    print(f"{len(paths)} modules, {sum(1 for path in paths for _ in module_functions(path))} module-level functions")
    measured = figures(paths)
    for figure in measured:
        print(figure)
        if options.details:
            print(end="".join(f"    {line}\n" for line in figure.details))
    return int(options.check and not all(figure.met for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
