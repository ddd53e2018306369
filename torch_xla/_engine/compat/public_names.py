"""Finds the public names of torch and jax that the sources of torch_xla use, and which of them are missing.

Reads the sources without importing them, so that it also works with a release that torch_xla cannot be imported with.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_FOREIGN = ("torch", "jax", "jaxlib")
#: Names that torch_xla itself defines at run time: its operators, and the device module.
_DEFINED_BY_US = ("torch.ops", "torch.xla", "torch.library", "torch.classes")


def used_names() -> dict[str, tuple[str, ...]]:
    """Return the dotted names that the package uses, such as ``jax.numpy.sinc``, with the files that use each."""
    found: dict[str, set[str]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        for name in _names_in(ast.parse(path.read_text())):
            found.setdefault(name, set()).add(str(path.relative_to(_PACKAGE.parent)))
    return {name: tuple(sorted(files)) for name, files in sorted(found.items())}


def missing_names() -> dict[str, tuple[str, ...]]:
    """Return the used names that the installed torch and jax do not have, with the files that use each."""
    return {name: files for name, files in used_names().items() if _is_missing(name)}


def _names_in(tree: ast.Module) -> Iterator[str]:
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    assigned |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    modules: dict[str, set[str]] = {}
    optional = _optional_nodes(tree)
    for node in ast.walk(tree):
        if node not in optional:
            for alias, name in _read_imports(node):
                yield name
                modules.setdefault(alias, set()).add(name)
    # Functions of a file may import several names as one alias; which one an attribute belongs to is not followed.
    single = {alias: min(names) for alias, names in modules.items() if len(names) == 1 and alias not in assigned}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in optional and isinstance(node.ctx, ast.Load):
            first, *rest = _chain(node) or [""]
            if first in single:
                yield ".".join([single[first], *rest])


def _chain(node: ast.expr) -> list[str]:
    """Return the parts of ``a.b.c``; none for an attribute of another expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    parts = _chain(node.value) if isinstance(node, ast.Attribute) else []
    return [*parts, node.attr] if parts and isinstance(node, ast.Attribute) else []


def _read_imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (alias, full name) of the modules and names of torch and jax that a statement imports."""
    match node:
        case ast.Import(names=names):
            for name in names:
                if name.name.split(".")[0] in _FOREIGN:
                    yield (name.asname, name.name) if name.asname else (name.name.split(".")[0],) * 2
        case ast.ImportFrom(module=str(module), names=names, level=0) if module.split(".")[0] in _FOREIGN:
            yield from ((name.asname or name.name, f"{module}.{name.name}") for name in names)


def _optional_nodes(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes that do without a name: within ``try``, or a conditional on ``hasattr`` or TYPE_CHECKING."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        tested = isinstance(node, (ast.If, ast.IfExp)) and ast.unparse(node.test)
        if isinstance(node, ast.Try) or (tested and ("hasattr" in tested or "TYPE_CHECKING" in tested)):
            found.update(ast.walk(node))
    return found


def _is_missing(name: str) -> bool:
    if name.startswith(_DEFINED_BY_US):
        return False
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in _FOREIGN:
                return False  # needs a package that is optional, such as tensorboard
            continue
        return not _has_path(value, parts[length:])
    return True


def _has_path(value: object, path: list[str]) -> bool:
    for part in path:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
        if not isinstance(value, type) and not hasattr(value, "__path__") and not hasattr(value, "__file__"):
            return True  # an object: its attributes are not names of torch or jax
    return True
