"""No two modules define a public class of one name, so that a name says which class is meant.

Classes of upstream's interface (tests/tools/upstream_names.txt) keep upstream's names and are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from lint_rules.sources import Finding, is_upstream, module_classes


def definitions(paths: Iterable[Path]) -> dict[str, list[tuple[Path, int]]]:
    """Where each class is defined: path and line. Upstream's own are left out."""
    found = defaultdict(list)
    for path in paths:
        for node in module_classes(path):
            if not is_upstream(path, node.name):
                found[node.name].append((path, node.lineno))
    return found


def check(paths: Iterable[Path]) -> Iterator[Finding]:
    for name, places in definitions(paths).items():
        files = sorted({path for path, _ in places})
        if not name.startswith("_") and len(files) > 1:
            others = ", ".join(path.name for path in files)
            for path, line in places:
                yield Finding(path, line, f"class {name}: defined in {others}; name each after what it is of")
