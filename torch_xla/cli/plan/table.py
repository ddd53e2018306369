"""Renders the rows of a plan as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_xla.cli.formatting import format_size, format_table
from torch_xla.cli.plan.summary import FITS

#: Rows below the table whose first change is printed.
_ADVISED = 5
NOTES = """\
Memory, FLOPs and bytes are of one chip and one step, from the programs of the target's compiler. Times, rates and the
bound on the MFU are estimates from published specifications; they were not measured on hardware. FLOPs, bytes and
memory were compared with hand-written jax for one model on v5e:4x4: docs/how_to/plan_hardware.md has the differences.
"""


def render_text(data: Mapping[str, Any]) -> str:
    """Return the table of the rows, and the first change of the best ones."""
    rows, unit = data["rows"], data["unit"]
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    priced = any(row.get("per_dollar") for row in rows)
    cells = [make_heading(names, unit, priced), *(_cells(row, names, priced) for row in rows)]
    first = 2 + len(names)
    lines = [format_table(cells, right=range(first, first + 7 + priced))]
    reasons = [f"  {row['label']}: {row['result']}: {row['reason']}" for row in rows if row["result"] != FITS]
    best = [row for row in rows if row["result"] == FITS][:_ADVISED]
    if best:
        lines += ["", "First change to make:"]
        lines += [f"  {row['label']}: {row['bottleneck']}: {row['advice']}" for row in best]
    if reasons:
        lines += ["", "Without an estimate:", *reasons]
    return "\n".join([*lines, "", NOTES])


def make_heading(names: Sequence[str], unit: str, priced: bool) -> tuple[str, ...]:
    """Return the names of the columns."""
    rates = (f"{unit}/s", *((f"{unit}/$",) if priced else ()))
    columns = ("memory", "TFLOP", "collectives", "time", "MFU at most", *rates)
    return ("target", *names, "result", *columns, "compute / memory / collectives")


def _cells(row: Mapping[str, Any], names: Sequence[str], priced: bool) -> tuple[str, ...]:
    start = (row["target"], *(row["values"].get(name, "") for name in names), row["result"])
    memory = format_memory(row["memory"]) if "memory" in row else ""
    if row["result"] != FITS:
        return (*start, memory, *[""] * (6 + priced))
    rates = (format_rate(row["per_second"]), *((format_rate(row["per_dollar"]),) if priced else ()))
    return (
        *start, memory, f"{row['flops'] / 1e12:.3g}", format_size(row["collective_bytes"]),
        format_time(row["seconds"]), f"{row['mfu']:.1%}", *rates, format_parts(row),
    )  # fmt: skip


def format_memory(memory: Mapping[str, Any]) -> str:
    """Format the required memory and the capacity."""
    if not memory["required"]:
        return ""
    return f"{format_size(memory['required'])} of {format_size(memory['capacity'])}"


def format_time(seconds: float) -> str:
    """Format a time in milliseconds."""
    return f"{1000 * seconds:,.4g} ms" if seconds < 10 else f"{seconds:,.1f} s"


def format_rate(value: float | None) -> str:
    """Format a rate with thousands separators; empty if unknown."""
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_parts(row: Mapping[str, Any]) -> str:
    """Format the shares of the time that compute, memory and collectives bound."""
    total = row["seconds"] or 1.0
    return " / ".join(f"{row['parts'][name] / total:.0%}" for name in ("compute", "memory", "collectives"))
