"""Renders the rows of a plan as one self-contained HTML file that embeds its data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch_xla._engine.base.report_style import STYLE
from torch_xla.cli.formatting import format_size
from torch_xla.cli.plan import chart, table
from torch_xla.cli.plan.summary import FITS

_STYLE = """
body { max-width: 1300px; } tr.selected td { background: #e8a33d33; } td.bar { width: 130px; }
"""

_SCRIPT = """
const rows = document.querySelectorAll("tr[data-row]");
function select(number) {
  for (const row of rows) row.classList.toggle("selected", row.dataset.row === number);
  for (const point of document.querySelectorAll(".combination"))
    point.setAttribute("r", point.dataset.row === number ? 10 : 6);
}
for (const element of document.querySelectorAll("[data-row]"))
  element.addEventListener("mouseover", () => select(element.dataset.row));
document.body.dataset.ready = document.querySelectorAll(".combination").length;
"""
_PARTS = {"compute": "#59a14f", "memory": "#4c78a8", "collectives": "#d64550"}


def render_html(data: Mapping[str, Any]) -> str:
    """Return the HTML file."""
    rows = data["rows"]
    fitting = [row for row in rows if row["result"] == FITS]
    stored = json.dumps(data).replace("<", "\\u003c")  # "</script>" would end the element that holds the data
    picture = f"<h2>Memory and time</h2>{chart.memory_chart(fitting)}" if fitting else ""
    title = f"Plan: {len(fitting)} of {len(rows)} combinations fit"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="muted">{escape(data["command"])}; torch_xla {escape(data["version"])}</p>'
        f"{picture}{_ranking_table(data, fitting)}{_failure_table([row for row in rows if row['result'] != FITS])}"
        f'<p class="muted">{escape(table.NOTES)}</p>'
        f'<script type="application/json" id="data">{stored}</script><script>{_SCRIPT}</script></body></html>\n'
    )


def _ranking_table(data: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    priced = any(row["per_dollar"] for row in rows)
    unit = data["unit"]
    numbers = ["memory", "TFLOP", "collectives", "time", "MFU at most", f"{unit}/s", *([f"{unit}/$"] * priced)]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("target", *names))
    head += "".join(f'<th class="n">{escape(name)}</th>' for name in numbers)
    head += "<th>compute, memory, collectives</th><th>bottleneck, first change</th>"
    body = "".join(_row(number, row, names, priced) for number, row in enumerate(rows))
    return f"<h2>Combinations that fit</h2><table><tr>{head}</tr>{body}</table>" if rows else ""


def _row(number: int, row: Mapping[str, Any], names: Sequence[str], priced: bool) -> str:
    words = (row["target"], *(row["values"].get(name, "") for name in names))
    rates = (table.format_rate(row["per_second"]), *([table.format_rate(row["per_dollar"])] * priced))
    numbers = (
        table.format_memory(row["memory"]), f"{row['flops'] / 1e12:.3g}", format_size(row["collective_bytes"]),
        table.format_time(row["seconds"]), f"{row['mfu']:.1%}", *rates,
    )  # fmt: skip
    cells = "".join(f"<td>{escape(word)}</td>" for word in words)
    cells += "".join(f'<td class="n">{escape(number)}</td>' for number in numbers)
    text = f'{escape(row["bottleneck"])}<br><span class="muted">{escape(row["advice"])}</span>'
    return f'<tr data-row="{number}">{cells}<td class="bar">{_bar(row)}</td><td>{text}</td></tr>'


def _bar(row: Mapping[str, Any]) -> str:
    """Draw the parts of the time as a bar."""
    total, x, parts = row["seconds"] or 1.0, 0.0, []
    for name, color in _PARTS.items():
        width = 120 * row["parts"][name] / total
        title = f"{name}: {table.format_time(row['parts'][name])}"
        parts.append(
            f'<rect x="{x:.1f}" y="2" width="{width:.1f}" height="12" fill="{color}"><title>{title}</title></rect>'
        )
        x += width
    return f'<svg viewBox="0 0 120 16" role="img" aria-label="parts of the time">{"".join(parts)}</svg>'


def _failure_table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in _other_cells(row))}</tr>" for row in rows)
    return (
        "<h2>Combinations without an estimate</h2>"
        f"<table><tr><th>combination</th><th>result</th><th>reason</th><th>first change</th></tr>{body}</table>"
    )


def _other_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["label"], row["result"], row["reason"], row.get("advice", "")
