"""Render a step report as text, wrapped at the width of the terminal."""

from __future__ import annotations

import textwrap
from typing import Any

from torch_xla._engine.base.messages import shorten_paths, terminal_columns
from torch_xla._engine.diagnostics.metrics import format_bytes
from torch_xla.debug.report_environment import environment_lines

_BAR = 20
_ROWS = 8


def render_text(data: dict[str, Any]) -> str:
    """Return the report as text: process, bottlenecks, time by category, then events by line."""
    lines = [*environment_lines(data["environment"]), "", summary(data), ""]
    for bottleneck in data["bottlenecks"]:
        lines += format_bottleneck(bottleneck)
    if data["steps"]["count"]:
        lines += ["", *_times(data), "", *_events(data)]
    lines += ["", *_wrap(format_utilization(data["utilization"]), "  ")] if data["utilization"] else []
    lines += _section("Compilations", [
        f"step {c['step']:>3}  {c['ops']:>5} ops  {c['ms']:>7.0f} ms  {c['cause']}, {_place(c)}"
        for c in data["compilations"]
    ])  # fmt: skip
    lines += _section("Unexpected compilations", [
        f"{r['times']} × {r['text']}" for r in data["recompilations"]
    ])  # fmt: skip
    lines += _section("Interpreted graphs (run op by op)", _not_compiled(data["not_compiled"]))
    lines += _section("CPU fallbacks", [f"{_rate(r)}  {r['op']}  {_place(r)}" for r in data["fallbacks"]])
    lines += _section("Values read", [f"{_rate(r)}  {_place(r)}" for r in data["reads"]])
    lines += _section("Persistent compilation cache", _on_disk(data["programs_on_disk"]))
    lines += _section("Memory", [_format_memory(device, info) for device, info in data["memory"].items()])
    return shorten_paths("\n".join(lines) + "\n")


def summary(data: dict[str, Any]) -> str:
    """Return the number and the times of the steps."""
    steps, settled = data["steps"], data["settled"]
    text = f"{steps['count']} steps, {steps['ops']:.0f} ops each, {steps['mean_ms']:.2f} ms on average"
    if settled["count"]:
        text += f"; {settled['count']} settled: p50 {settled['median_ms']:.2f} ms, p95 {settled['p95_ms']:.2f} ms"
    return text


def format_utilization(info: dict[str, Any]) -> str:
    """Return FLOPs, utilization and goodput of the settled steps as a sentence; empty without FLOPs."""
    if not info:
        return ""
    rate = f"{info['flops_per_second'] / 1e9:.4g} GFLOP/s per device ({info['flops'] / 1e9:.4g} GFLOP a step)"
    source, utilization = info["peak_source"], info["utilization"]
    share = source if utilization is None else f"{utilization:.0%} of the peak: {source}"
    return f"FLOPs utilization: {rate}, {share}. Goodput: {info['goodput']:.0%}."


def format_bottleneck(bottleneck: dict[str, str]) -> list[str]:
    """Return a bottleneck as wrapped lines that begin with its level."""
    mark, indent = f"[{bottleneck['level']}]", " " * 10
    rows = [f"{mark:<10}{shorten_paths(bottleneck['text'])}"]
    rows += [indent + shorten_paths(bottleneck["advice"])] if bottleneck["advice"] else []
    return [line for row in rows for line in _wrap(row, indent)]


def _wrap(row: str, indent: str) -> list[str]:
    return textwrap.wrap(
        row, terminal_columns(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False,
    )  # fmt: skip


def _times(data: dict[str, Any]) -> list[str]:
    lines = [
        f"{'Time of a step':<18}{'all':>14}{'share':>8}{'settled':>14}{'share':>8}",
    ]
    for name, row in data["time"].items():
        if row["ms_per_step"] or row["settled_ms"]:
            bar = "#" * round(_BAR * row["settled_share"])
            lines.append(
                f"  {name:<16}{row['ms_per_step']:>11.3f} ms{row['share']:>8.0%}{row['settled_ms']:>11.3f} ms"
                f"{row['settled_share']:>8.0%}  {bar}".rstrip()
            )
    return lines


def _events(data: dict[str, Any]) -> list[str]:
    lines = [f"{'Events':<22}{'count':>8}{'p50':>15}{'p95':>15}{'total':>16}"]
    for name, row in data["events"].items():
        times = f"{row['p50_ms']:>12.3f} ms{row['p95_ms']:>12.3f} ms{row['total_ms']:>13.1f} ms"
        lines.append(f"  {name:<20}{row['count']:>8}{times}")
    return lines


def _section(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"  and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    lines = []
    for row in rows[:_ROWS]:
        first, *rest = shorten_paths(row).splitlines()
        lines += [*_wrap(f"  {first}", "      "), *(line for part in rest for line in _wrap(f"    {part}", "      "))]
    return ["", title, *lines, *more]


def _place(row: dict[str, Any]) -> str:
    return f"{row['line']}\n| {row['source']}" if row["source"] else str(row["line"])


def _rate(row: dict[str, Any]) -> str:
    return f"{row['per_step']:>6.2f} per step  {row['ms_per_step']:>9.3f} ms"


def _not_compiled(info: dict[str, Any]) -> list[str]:
    if not info:
        return []
    return [
        f"{info['count']} graphs, {info['ms']:.0f} ms in total",
        *(f"changes on every call: {line}" for line in info["lines"]),
    ]


def _on_disk(info: dict[str, Any]) -> list[str]:
    if not info:
        return []
    limit = f" of {format_bytes(info['limit'])}" if info["limit"] else ""
    removed = f", {info['removed']} removed" if info["removed"] else ""
    size = f"{format_bytes(info['bytes'])}{limit}"
    return [f"{info['loaded']} loaded, {info['kept']} added{removed}; {size} in {info['folder']}"]


def _format_memory(device: str, info: dict[str, int]) -> str:
    used, limit, peak = (format_bytes(info[name]) for name in ("bytes_used", "bytes_limit", "peak_bytes_used"))
    return f"{device}: {used} of {limit} in use, peak {peak}"
