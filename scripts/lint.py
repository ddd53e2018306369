"""Checks the names of functions and classes, and phrases in text; `make lint` runs it.

    python scripts/lint.py                   fails if a rule has more findings than its limit
    python scripts/lint.py --all             prints every finding
    python scripts/lint.py --update-limits   after fixing some: writes today's numbers into lint_rules/limits.toml

The rules are in lint_rules/.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from lint_rules import class_names, dialect, function_names
from lint_rules.sources import Finding, changed_files, tracked_files

LIMITS = Path(__file__).resolve().parent / "lint_rules" / "limits.toml"

_NOT_CHECKED = (":!scripts/lint_rules", ":(exclude,glob)tests/**/test_lint*.py")  # they contain bad examples

#: Rule -> its check, and the areas that are counted on their own, as pathspecs of git.
RULES: dict[str, tuple[Callable[[Iterable[Path]], Iterator[Finding]], dict[str, tuple[str, ...]]]] = {
    "function_names": (
        function_names.check,
        {"package": ("torch_xla/*.py",), "tools": ("scripts/*.py", "benchmarks/*.py", "examples/*.py")},
    ),
    "class_names": (class_names.check, {"package": ("torch_xla/*.py",)}),
    "dialect": (
        dialect.check,
        {
            "package": ("torch_xla/*.py", "torch_xla/*.cpp", "torch_xla/*.h"),
            "documents": ("*.md", "*.yml", "Makefile", "pyproject.toml"),
            "tools": ("scripts/*.py", "benchmarks/*.py", "examples/*.py", "*.sh"),
            "tests": ("tests/*.py",),
        },
    ),
}


def collect() -> dict[tuple[str, str], list[Finding]]:
    return {
        (rule, area): list(check(tracked_files(*paths, *_NOT_CHECKED)))
        for rule, (check, areas) in RULES.items()
        for area, paths in areas.items()
    }


def limits_text(counts: dict[tuple[str, str], int]) -> str:
    lines = ["# How many findings of each rule are left in each area. Only ever lower a number: `make lint` says when."]
    for rule, (_, areas) in RULES.items():
        lines += ["", f"[{rule}]", *(f"{area} = {counts[rule, area]}" for area in areas)]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/lint.py", description="Checks names and phrases.")
    parser.add_argument("--all", action="store_true", help="print every finding")
    parser.add_argument("--update-limits", action="store_true", help="write today's numbers into limits.toml")
    options = parser.parse_args()
    found = collect()
    if options.update_limits:
        LIMITS.write_text(limits_text({key: len(findings) for key, findings in found.items()}))
    limits = tomllib.loads(LIMITS.read_text())
    failed = False
    for (rule, area), findings in found.items():
        limit = limits[rule][area]
        if options.all:
            print(*findings, sep="\n")
        elif len(findings) > limit:
            changed = changed_files()  # of many old findings only those that may be new
            print(*[one for one in findings if one.path in changed] or findings, sep="\n")
        if len(findings) > limit:
            failed = True
            print(f"{rule}, {area}: {len(findings)} findings, at most {limit} allowed (scripts/lint_rules/limits.toml)")
        elif len(findings) < limit:
            print(
                f"{rule}, {area}: {len(findings)} findings, {limit} allowed: run python scripts/lint.py --update-limits"
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
