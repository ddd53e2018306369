"""Renders an ahead-of-time report as a self-contained HTML file that embeds its data."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.base.report_style import STYLE
from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla.aot import report_text
from torch_xla.debug import report_html

_COLORS = {"arguments": "#4c78a8", "new": "#59a14f", "temporaries": "#e8a33d", "others": "#9c9c9c"}
_WIDTH = 960


def render_html(data: dict[str, Any]) -> str:
    """Return the HTML file."""
    target = data["target"]
    title = f"{target['name']}: {report_text.fit_summary(data)}"
    result = "".join(report_html.html_bottleneck(row) for row in _results(data))
    programs = "".join(_program(row) for row in data["programs"])
    tables = "".join(
        [
            report_html.html_table(
                "Unsupported dtypes",
                ("dtype", "#ops", "first at", "on the target"),
                [(r["dtype"], str(r["ops"]), r["line"], r["what"]) for r in data["lacks"]],
            ),
            report_html.html_table(
                "Recompilations", ("#times", "reason"), [(str(r["times"]), r["text"]) for r in data["recompilations"]]
            ),
            report_html.html_table(
                "CPU fallbacks",
                ("#per step", "op", "line"),
                [(f"{r['per_step']:.2f}", r["op"], r["line"]) for r in data["fallbacks"]],
            ),
            report_html.html_table(
                "Values read", ("#per step", "line"), [(f"{r['per_step']:.2f}", r["line"]) for r in data["reads"]]
            ),
        ]
    )
    stored = json.dumps(data).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"{report_html.environment_table(data['environment'])}"
        f"<p>{target['chips']} × {escape(target['chip'])}, {format_bytes(target['hbm_bytes'])} each; "
        f"{escape(report_text.chips_summary(data))}</p>{result}"
        f"{programs}{tables}<p>{escape(' '.join(report_text.estimate_notes(data)))}</p>"
        f'<script type="application/json" id="data">{stored}</script></body></html>\n'
    )


def _results(data: dict[str, Any]) -> list[dict[str, str]]:
    """Return whether the programs fit, and the failures, with their levels."""
    errors = [f"program {row['number']}: {row['error']}" for row in data["programs"] if row["error"]]
    texts = [text for text in (data["failure"], *errors) if text]
    if not data["fits"]:
        texts.insert(0, report_text.fit_summary(data))
    if texts:
        return [{"level": "problem", "text": text, "advice": ""} for text in texts]
    count = len(data["programs"])
    text = f"{count} program{'s'[: count != 1]} compiled; the memory of a chip is sufficient."
    return [{"level": "ok", "text": text, "advice": ""}]


def _program(row: dict[str, Any]) -> str:
    head = f"Program {row['number']}: {row['ops']} ops, ran {report_text.format_run_count(row['runs'])}"
    source = f"  {row['source']}" if row["source"] else ""
    lines = [f"{row['cause']}, {row['line']}{source}", report_text.format_memory(row["memory"])]
    if row["error"]:
        lines.append(row["error"])
    if row["work"] is not None:
        lines += [report_text.format_cost(row["work"]), report_text.format_time(row), report_text.format_bound(row)]
    lines += [report_text.format_collective(found) for found in row["collectives"]]
    total = (row["work"] or {}).get("seconds") or 1.0
    expensive = report_html.html_table(
        "Most expensive operations (estimates)",
        ("#share", "#time", "operation", "line"),
        [
            (f"{e['seconds'] / total:.0%}", report_text.format_duration(e["seconds"]), e["op"] or e["name"], e["line"])
            for e in row["expensive"]
        ],
    )
    modules = report_html.html_table(
        "Modules, with submodules and backward (estimates)",
        ("#share", "#time", "#backward", "#FLOP", "#HBM traffic", "module"),
        [_module(e, total) for e in row["modules"]],
    )
    largest = report_html.html_table(
        "Largest buffers",
        ("#size", "what", "line"),
        [(format_bytes(e["bytes"]), e["what"], e["line"]) for e in row["memory"]["largest"]],
    )
    paragraphs = "".join(f"<p>{escape(shorten_paths(line))}</p>" for line in lines)
    return f"<h2>{escape(head)}</h2>{_memory_bar(row['memory'])}{paragraphs}{expensive}{modules}{largest}"


def _module(row: dict[str, Any], total: float) -> tuple[str, ...]:
    depth = row["module"].count("/")
    return (
        f"{row['seconds'] / total:.0%}",
        report_text.format_duration(row["seconds"]),
        report_text.format_duration(row["backward"]) if row["backward"] else "",
        f"{row['flops']:.3g}",
        format_bytes(row["bytes"]),
        "\u2003" * depth + (row["module"] or report_text.NO_MODULE),
    )


def _memory_bar(memory: dict[str, Any]) -> str:
    """Draw the memory use as a bar whose width is the larger of the chip's capacity and the required memory."""
    if "peak" not in memory:
        return ""
    parts = {
        "arguments": memory["arguments"],
        "new": max(0, memory["outputs"] - memory["aliased"]),
        "temporaries": memory["temporaries"],
        "others": memory["others"],
    }
    total, x, out = max(memory["capacity_bytes"], memory["required_bytes"]), 0.0, []
    for name, size in parts.items():
        width = _WIDTH * size / total
        out.append(
            f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="18" fill="{_COLORS[name]}">'
            f"<title>{name}: {format_bytes(size)}</title></rect>"
        )
        x += width
    limit = _WIDTH * memory["capacity_bytes"] / total
    out.append(f'<line x1="{limit:.2f}" x2="{limit:.2f}" y1="0" y2="24" stroke="#d64550" stroke-width="2"/>')
    return f'<svg viewBox="0 0 {_WIDTH} 24" role="img" aria-label="memory of a chip">{"".join(out)}</svg>'
