"""Which module of a package imports which, the cycles among them, and how high each stands above the lowest."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def import_graph(paths: Iterable[Path], root: Path, functions: bool = False) -> Graph:
    """Module -> modules that it imports at its top level, below `if TYPE_CHECKING` included.

    With ``functions``, also what functions import when they are called. An import of a module is no edge to the
    packages that contain it, although Python runs their `__init__` first.
    """
    modules = {module_name(path, root): path for path in paths}
    return {
        name: {target for node in _imports(path, functions) for target in _targets(node, modules)} - {name}
        for name, path in modules.items()
    }


def _imports(path: Path, functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    pending: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending.extend(ast.iter_child_nodes(node))


def _targets(node: ast.Import | ast.ImportFrom, modules: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        candidates = [alias.name for alias in node.names]
    else:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        # `from package import name` needs the package itself unless name is a module of it.
        candidates = [name if name in modules else str(node.module) for name in inner]
    yield from (name for name in candidates if name in modules)


def group(graph: Graph, depth: int) -> Graph:
    """The graph of packages: modules with the same first ``depth`` names are one."""
    grouped: Graph = {}
    for name, targets in graph.items():
        short = ".".join(name.split(".")[:depth])
        grouped.setdefault(short, set()).update(".".join(target.split(".")[:depth]) for target in targets)
    return {name: targets - {name} for name, targets in grouped.items()}


def components(graph: Graph) -> list[list[str]]:
    """The strongly connected components, each after those that it imports (Tarjan). Those of several are cycles."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    done: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            position = stack.index(name)
            done.append(sorted(stack[position:]))
            del stack[position:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return done


def cycles(graph: Graph) -> list[list[str]]:
    return [members for members in components(graph) if len(members) > 1]


def levels(graph: Graph) -> dict[str, int]:
    """How many imports lead from each module to the lowest on the longest way; modules of a cycle have one level."""
    found: dict[str, int] = {}
    for members in components(graph):
        below = {target for name in members for target in graph[name]} - set(members)
        found |= dict.fromkeys(members, max((found[target] + 1 for target in below), default=0))
    return found
