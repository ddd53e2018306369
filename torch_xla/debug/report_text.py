"""Render a step report as text of at most 120 columns, except for the user's file names."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.diagnostics.metrics import format_bytes

_BAR = 24
_ROWS = 8


def render_text(data: dict[str, Any]) -> str:
    """Return the report as text: bottlenecks, time by category, then events by line."""
    steps = data["steps"]
    lines = [
        f"{steps['count']} steps, {steps['mean_ms']:.2f} ms on average, median {steps['median_ms']:.2f}, "
        f"90 % below {steps['p90_ms']:.2f}; {steps['ops']:.0f} ops each",
        "",
    ]
    for bottleneck in data["bottlenecks"]:
        lines += [f"* {bottleneck['text']}", *([f"  {bottleneck['advice']}"] if bottleneck["advice"] else [])]
    if steps["count"]:
        lines += ["", *_times(data)]
    lines += _section(
        "Compilations",
        [
            f"step {c['step']}: {c['ops']} ops, {c['ms']:.0f} ms, {c['cause']}, {c['line']}"
            for c in data["compilations"]
        ],
    )
    lines += _section("Unexpected compilations", [f"{r['times']} × {r['text']}" for r in data["recompilations"]])
    lines += _section("Interpreted graphs", _not_compiled(data["not_compiled"]))
    lines += _section("Persistent compilation cache", _on_disk(data["programs_on_disk"]))
    lines += _section("CPU fallbacks", [f"{_rate(r)}  {r['op']}  {r['line']}" for r in data["fallbacks"]])
    lines += _section("Values read", [f"{_rate(r)}  {r['line']}" for r in data["reads"]])
    lines += _section("Memory", [_format_memory(device, info) for device, info in data["memory"].items()])
    return "\n".join(lines) + "\n"


def _times(data: dict[str, Any]) -> list[str]:
    settled = data["settled"]["count"]
    lines = [f"Time of a step            ms   share   of {settled} steps without a compilation: ms   share"]
    for name, row in data["time"].items():
        if row["ms_per_step"] or row["settled_ms"]:
            bar = "#" * round(_BAR * row["settled_share"])
            lines.append(
                f"  {name:<12} {row['ms_per_step']:>13.3f} {row['share']:>6.0%} {row['settled_ms']:>38.3f} "
                f"{row['settled_share']:>6.0%}  {bar}"
            )
    return lines


def _section(title: str, rows: list[str]) -> list[str]:
    if not rows:
        return []
    more = [f"  and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["", title, *(f"  {row}" for row in rows[:_ROWS]), *more]


def _rate(row: dict[str, Any]) -> str:
    return f"{row['per_step']:.2f} per step, {row['ms_per_step']:.3f} ms"


def _not_compiled(info: dict[str, Any]) -> list[str]:
    if not info:
        return []
    return [
        f"{info['count']} graphs, {info['ms']:.0f} ms in total",
        *(f"unstable line: {line}" for line in info["lines"]),
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
