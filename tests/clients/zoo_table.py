"""Writes the table of docs/project/model_coverage.md from the data of the zoo's tests.

python -m tests.clients.zoo_table      writes it into the document
"""

from __future__ import annotations

from pathlib import Path

from tests.clients.zoo_models import FAMILIES, TIMM, TIMM_DOUBLE, TIMM_SIZED, Architecture

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "project" / "model_coverage.md"
START, END = "<!-- zoo -->\n", "<!-- end of zoo -->"


def table() -> str:
    """The part of the document between the marks."""
    timm = (*TIMM, *TIMM_SIZED, *TIMM_DOUBLE)
    lines = ["| family | models | equal to the CPU | one program | more | architectures |\n", f"|{' --- |' * 6}\n"]
    for family, models in FAMILIES.items():
        once = sum(m.programs == 1 and not m.why for m in models)
        names = ", ".join(m.model for m in models)
        lines.append(f"| {family} | {len(models)} | all | {once} | {len(models) - once} | {names} |\n")
    lines.append(f"| timm | {len(timm)} | all | {len(timm)} | 0 | {', '.join(sorted(timm))} |\n")
    lines.append("\nModels with more than one program per step, or with operations on the CPU:\n\n")
    lines.append("| architecture | programs per step | operations on the CPU | note |\n| --- | --- | --- | --- |\n")
    rest = [m for models in FAMILIES.values() for m in models if m.programs > 1 or m.fallbacks or m.why]
    return "".join(lines) + "".join(map(_row, rest))


def _row(found: Architecture) -> str:
    fallbacks = ", ".join(f"`{name}`" for name in found.fallbacks)
    why = (
        f"compiles in every step: {found.why}"
        if found.why
        else found.again and f"one program recompiles in step 2: {found.again}"
    )
    return f"| {found.model} | {found.programs} | {fallbacks} | {why} |\n"


def replaced(document: str) -> str:
    """The document with the table of today."""
    head, _, rest = document.partition(START)
    return head + START + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    DOCUMENT.write_text(replaced(DOCUMENT.read_text()))
