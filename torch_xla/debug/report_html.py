"""Render a step report as one self-contained HTML file with SVG charts and a script for details of a step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.base.report_style import STYLE
from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla.debug import report_charts, report_text

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const detail = document.getElementById("detail");
function show(row) {
  const parts = Object.entries(row.parts).filter(p => p[1] > 0).map(p => p[0] + " " + p[1].toFixed(3) + " ms");
  detail.textContent = "step " + row.number + " (" + row.thread + "): " + row.wall_ms.toFixed(3) + " ms, " + row.ops
    + " ops, peak " + (row.peak_bytes / 1048576).toFixed(1) + " MB"
    + (row.compiled ? ", " + row.compiled + " compiled" : "")
    + (row.interpreted ? ", " + row.interpreted + " interpreted" : "")
    + "\\n" + parts.join(", ");
}
for (const bar of document.querySelectorAll(".step"))
  bar.addEventListener("mouseover", () => show(data.timeline[bar.dataset.step]));
if (data.timeline.length) show(data.timeline[data.timeline.length - 1]);
document.body.dataset.ready = document.querySelectorAll(".step").length;
"""


def render_html(data: dict[str, Any]) -> str:
    """Return the HTML file."""
    stored = json.dumps(data).replace("<", "\\u003c")  # "</script>" would end the element that holds the data
    title = f"Step report: {data['environment']['script']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{environment_table(data['environment'])}"
        f"<p>{escape(report_text.summary(data))}</p>{''.join(map(html_bottleneck, data['bottlenecks']))}"
        f"<p>{escape(report_text.format_utilization(data['utilization']))}</p>{_charts(data)}{_tables(data)}"
        f'<script type="application/json" id="data">{stored}</script><script>{_SCRIPT}</script></body></html>\n'
    )


def environment_table(environment: dict[str, Any]) -> str:
    """Return the description of the process as a table."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    rows = [(name, environment[name]) for name in ("command", "date", "device", "cpu")] + [("versions", versions)]
    cells = "".join(f'<tr><td class="muted">{name}</td><td>{escape(text)}</td></tr>' for name, text in rows)
    return f'<table class="environment">{cells}</table>'


def html_bottleneck(bottleneck: dict[str, str]) -> str:
    """Return a bottleneck as a box: red for a problem, green if all is well, gray for a note."""
    text, advice = (escape(shorten_paths(bottleneck[name])) for name in ("text", "advice"))
    level = bottleneck["level"] if bottleneck["level"] in ("problem", "note", "ok") else "note"
    return f'<div class="bottleneck {level}"><p>{text}</p><p class="advice">{advice}</p></div>'


def _charts(data: dict[str, Any]) -> str:
    rows = data["timeline"]
    if not rows:
        return '<p id="detail"></p>'
    return (
        f"<h2>Steps</h2>{report_charts.legend()}{report_charts.step_chart(rows)}"
        f'<p id="detail"></p><h2>Memory</h2>{report_charts.memory_chart(rows)}'
    )


def _tables(data: dict[str, Any]) -> str:
    time = [
        (name, f"{row['ms_per_step']:.3f} ms", f"{row['share']:.0%}", f"{row['settled_ms']:.3f} ms",
         f"{row['settled_share']:.0%}")
        for name, row in data["time"].items()
        if row["ms_per_step"] or row["settled_ms"]
    ]  # fmt: skip
    memory = [
        (device, *(format_bytes(info[n]) for n in ("bytes_used", "peak_bytes_used", "bytes_limit")))
        for device, info in data["memory"].items()
    ]
    compilations = [
        (str(c["step"]), str(c["ops"]), f"{c['ms']:.0f} ms", "yes" if c["unexpected"] else "", c["cause"], _place(c))
        for c in data["compilations"]
    ]
    events = [
        (name, str(row["count"]), *(f"{row[column]:.3f} ms" for column in ("p50_ms", "p95_ms", "total_ms")))
        for name, row in data["events"].items()
    ]
    reasons = [(str(r["times"]), r["text"]) for r in data["recompilations"]]
    places = [(*_rate(r), r["op"], _place(r)) for r in data["fallbacks"]]
    reads = [(*_rate(r), _place(r)) for r in data["reads"]]
    return "".join(
        [
            html_table("Time of a step", ("", "#all steps", "#share", "#settled steps", "#share"), time),
            html_table("Compilations", ("#step", "#ops", "#time", "unexpected", "sync reason", "line"), compilations),
            html_table("Events", ("", "#count", "#p50", "#p95", "#total"), events),
            html_table("Unexpected compilations", ("#times", "explanation"), reasons),
            html_table(
                "Interpreted graphs", ("#graphs", "#time", "lines that change on every call"), _not_compiled(data)
            ),
            html_table("CPU fallbacks", ("#per step", "#time per step", "op", "line"), places),
            html_table("Values read", ("#per step", "#time per step", "line"), reads),
            html_table(
                "Persistent compilation cache",
                ("#loaded", "#added", "#removed", "#size", "#limit", "folder"),
                _on_disk(data),
            ),
            html_table("Memory", ("device", "#in use", "#peak", "#limit"), memory),
        ]
    )


def _not_compiled(data: dict[str, Any]) -> list[tuple[str, ...]]:
    info = data["not_compiled"]
    return [(str(info["count"]), f"{info['ms']:.0f} ms", ", ".join(info["lines"]))] if info else []


def _on_disk(data: dict[str, Any]) -> list[tuple[str, ...]]:
    info = data["programs_on_disk"]
    if not info:
        return []
    counts = (str(info[name]) for name in ("loaded", "kept", "removed"))
    return [(*counts, *(format_bytes(info[name]) for name in ("bytes", "limit")), info["folder"])]


def _rate(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['per_step']:.2f}", f"{row['ms_per_step']:.3f} ms"


def _place(row: dict[str, Any]) -> str:
    """Return a line and its source, separated by a NUL character for ``html_table``."""
    return f"{row['line']}\0{row['source']}" if row.get("source") else str(row["line"])


def html_table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table with a title; an empty string without rows.

    A column whose name begins with ``#`` has numbers, which are right-aligned and do not wrap. The text of a cell after
    a NUL character is source code.
    """
    kinds = [' class="n"' if name.startswith("#") else "" for name in head]
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_cell(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    if not body:
        return ""
    names = "".join(f"<th{kind}>{escape(name.lstrip('#'))}</th>" for kind, name in zip(kinds, head, strict=True))
    return f"<h2>{escape(title)}</h2><table><tr>{names}</tr>{body}</table>"


def _cell(text: str) -> str:
    text, _, source = shorten_paths(text).partition("\0")
    return escape(text) + (f"<code>{escape(source)}</code>" if source else "")
