"""``python -m torch_xla._engine.compat``: list the names of torch and jax that torch_xla uses, and the missing ones.

Lists the public names that the installed releases lack, and each private name with its purpose. Exits with 1 if a name
is missing.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator

from torch_xla._engine import compat
from torch_xla._engine.compat import public_names, versions
from torch_xla._engine.compat.private_api import ENTRIES, PrivateApi


def load_entries() -> list[PrivateApi]:
    """Import all modules of ``compat``, which declare the private names, and return these."""
    for module in pkgutil.iter_modules(compat.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{compat.__name__}.{module.name}")
    return ENTRIES


def missing_entries() -> list[PrivateApi]:
    """Return the entries that the installed torch and jax do not have."""
    return [entry for entry in load_entries() if entry.is_missing]


def report_lines() -> Iterator[str]:
    """Yield the installed releases, the public names that are missing, then a line for each private name."""
    for name, release in versions.installed_versions().items():
        state = "tested" if versions.is_tested(name, release) else "NOT tested"
        yield f"{name} {release}: {state} (tested: {', '.join(versions.TESTED[name])})"
    yield ""
    missing = public_names.missing_names()
    yield f"public names: {len(public_names.used_names()) - len(missing)} there, {len(missing)} missing"
    for name, files in missing.items():
        yield f"MISSING    {name}: used by {', '.join(files)}"
    yield ""
    for entry in load_entries():
        there = entry.resolve_or_none() is not None
        state = "there" if there else "MISSING" if entry.is_missing else "not needed"
        yield f"{state:<10} {entry.path}: {entry.purpose if there else entry.without}"


if __name__ == "__main__":
    lines = list(report_lines())
    print("\n".join(lines))
    sys.exit(any(line.startswith("MISSING") for line in lines))
