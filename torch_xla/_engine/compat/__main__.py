"""``python -m torch_xla._engine.compat``: list the private names that torch_xla uses, and which of them are missing.

Exits with 1 if a name is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from torch_xla._engine.compat import (  # noqa: F401
    dispatcher,
    distributed,
    dynamo,
    pjrt_execution,
    serialization,
    torch_modules,
    versions,
    xprof,
)
from torch_xla._engine.compat.private_api import ENTRIES, PrivateApi


def missing_entries() -> list[PrivateApi]:
    """Return the entries that the installed torch and jax do not have."""
    return [entry for entry in ENTRIES if entry.is_missing]


def report_lines() -> Iterator[str]:
    """Yield the installed releases, then a line for each entry."""
    for name, release in versions.installed_versions().items():
        state = "tested" if versions.is_tested(name, release) else "NOT tested"
        yield f"{name} {release}: {state} (tested: {', '.join(versions.TESTED[name])})"
    yield ""
    for entry in ENTRIES:
        there = entry.resolve_or_none() is not None
        state = "there" if there else "MISSING" if entry.is_missing else "not needed"
        yield f"{state:<10} {entry.path}: {entry.purpose if there else entry.without}"


if __name__ == "__main__":
    print("\n".join(report_lines()))
    sys.exit(bool(missing_entries()))
