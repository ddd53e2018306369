"""Render a step report as one self-contained HTML file with SVG charts and a script for details of a step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla.debug import report_charts

#: The style sheet of report pages, also of torch_xla.aot.
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222;
  background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: #8884; } .axis { stroke: #888; } .step:hover { opacity: .6; }
.legend span { margin-right: 1em; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
.bottleneck { border-left: 4px solid #d64550; padding: .2em 1em; margin: .6em 0; }
.bottleneck p { margin: 0; } .bottleneck .advice { color: #666; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2em .8em .2em 0;
  border-bottom: 1px solid #8883; overflow-wrap: anywhere; }
th { white-space: nowrap; } td.n, th.n { text-align: right; }
#detail { min-height: 3em; font-family: monospace; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } .bottleneck .advice { color: #aaa; } }
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const detail = document.getElementById("detail");
function show(row) {
  const parts = Object.entries(row.parts).filter(p => p[1] > 0).map(p => p[0] + " " + p[1].toFixed(3) + " ms");
  detail.textContent = "step " + row.number + " (" + row.thread + "): " + row.wall_ms.toFixed(3) + " ms, " + row.ops
    + " ops, peak " + row.peak_bytes + " bytes" + (row.compiled ? ", " + row.compiled + " compiled" : "")
    + "\\n" + parts.join(", ");
}
for (const bar of document.querySelectorAll(".step"))
  bar.addEventListener("mouseover", () => show(data.timeline[bar.dataset.step]));
if (data.timeline.length) show(data.timeline[data.timeline.length - 1]);
document.body.dataset.ready = document.querySelectorAll(".step").length;
"""


def render_html(data: dict[str, Any]) -> str:
    """Return the HTML file."""
    steps = data["steps"]
    summary = f"{steps['count']} steps, {steps['mean_ms']:.2f} ms on average, {steps['ops']:.0f} ops each"
    stored = json.dumps(data).replace("<", "\\u003c")  # "</script>" would end the element that holds the data
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>torch_xla report</title>'
        f"<style>{STYLE}</style></head><body><h1>Step report</h1><p>{escape(summary)}</p>"
        f"{''.join(map(_bottleneck, data['bottlenecks']))}{_charts(data)}{_tables(data)}"
        f'<script type="application/json" id="data">{stored}</script><script>{_SCRIPT}</script></body></html>\n'
    )


def _bottleneck(bottleneck: dict[str, str]) -> str:
    text, advice = escape(bottleneck["text"]), escape(bottleneck["advice"])
    return f'<div class="bottleneck"><p>{text}</p><p class="advice">{advice}</p></div>'


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
        (name, f"{row['ms_per_step']:.3f}", f"{row['share']:.0%}", f"{row['settled_ms']:.3f}",
         f"{row['settled_share']:.0%}")
        for name, row in data["time"].items()
    ]  # fmt: skip
    memory = [
        (device, *(format_bytes(info[n]) for n in ("bytes_used", "peak_bytes_used", "bytes_limit")))
        for device, info in data["memory"].items()
    ]
    compilations = [
        (str(c["step"]), str(c["ops"]), f"{c['ms']:.0f}", c["cause"], c["line"]) for c in data["compilations"]
    ]
    places = [(r["op"], r["line"], *_rate(r)) for r in data["fallbacks"]]
    return "".join(
        [
            html_table("Time of a step", ("", "ms", "share", "ms without compilations", "share"), time),
            html_table("Compilations", ("step", "ops", "ms", "cause", "line"), compilations),
            html_table(
                "Unexpected compilations",
                ("times", "explanation"),
                [(str(r["times"]), r["text"]) for r in data["recompilations"]],
            ),
            html_table("CPU fallbacks", ("op", "line", "per step", "ms per step"), places),
            html_table(
                "Values read", ("line", "per step", "ms per step"), [(r["line"], *_rate(r)) for r in data["reads"]]
            ),
            html_table("Interpreted graphs", ("graphs", "ms", "unstable lines"), _not_compiled(data)),
            html_table(
                "Persistent compilation cache",
                ("loaded", "added", "removed", "size", "limit", "folder"),
                _on_disk(data),
            ),
            html_table("Memory", ("device", "in use", "peak", "limit"), memory),
        ]
    )


def _not_compiled(data: dict[str, Any]) -> list[tuple[str, ...]]:
    info = data["not_compiled"]
    return [(str(info["count"]), f"{info['ms']:.0f}", ", ".join(info["lines"]))] if info else []


def _on_disk(data: dict[str, Any]) -> list[tuple[str, ...]]:
    info = data["programs_on_disk"]
    if not info:
        return []
    counts = (str(info[name]) for name in ("loaded", "kept", "removed"))
    return [(*counts, *(format_bytes(info[name]) for name in ("bytes", "limit")), info["folder"])]


def _rate(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['per_step']:.2f}", f"{row['ms_per_step']:.3f}"


def html_table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table with a title; an empty string without rows."""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    if not body:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<h2>{escape(title)}</h2><table><tr>{names}</tr>{body}</table>"
