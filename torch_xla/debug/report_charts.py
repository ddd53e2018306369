"""Draw the charts of a step report as SVG: time of each step by category, and peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from torch_xla._engine.diagnostics.metrics import format_bytes

COLORS = {
    "input": "#e8a33d", "tracing": "#4c78a8", "first use": "#a0cbe8", "compile": "#d64550", "interpreted": "#f28e8e",
    "execute": "#59a14f", "transfers": "#b07aa1", "waiting": "#9c9c9c", "fallbacks": "#8c564b", "other": "#c7c7c7",
}  # fmt: skip
_WIDTH, _LEFT, _BOTTOM = 960, 70, 20


def step_chart(rows: Sequence[dict[str, Any]]) -> str:
    """Return a stacked bar per step, clipped at three times the 90th percentile.

    A dot above a step marks compilations, a ring graphs that were interpreted.
    """
    height = 240
    walls = sorted(row["wall_ms"] for row in rows)
    top = min(walls[-1], 3 * walls[int(0.9 * (len(walls) - 1))]) or 1.0
    width = (_WIDTH - _LEFT) / len(rows)
    bars = []
    for i, row in enumerate(rows):
        x = _LEFT + i * width
        bars.append(f'<g class="step" data-step="{i}">{_bar(row, x, width, height, top)}</g>')
    return _frame("Time of each step", height, [(top, _time(top)), (top / 2, _time(top / 2))], top, bars)


def _time(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 999.5 else f"{ms / 1000:.4g} s"


def _bar(row: dict[str, Any], x: float, width: float, height: int, top: float) -> str:
    y, out = float(height), []
    gap = 0.15 * width if width > 3 else 0.0
    for name, value in row["parts"].items():
        size = min(value / top * (height - 24), y - 24)
        if size > 0:
            y -= size
            out.append(_rect(x, y, width - gap, size, COLORS[name]))
    if row["compiled"]:
        out.append(f'<circle class="compile" cx="{x + width / 2:.2f}" cy="10" r="4" fill="{COLORS["compile"]}"/>')
    if row["interpreted"]:
        out.append(
            f'<circle class="interpreted" cx="{x + width / 2:.2f}" cy="19" r="3" fill="none" '
            f'stroke="{COLORS["interpreted"]}" stroke-width="1.5"/>'
        )
    title = f"step {row['number']}: {row['wall_ms']:.3f} ms"
    return f"<title>{escape(title)}</title>{_rect(x, 0, width, height, 'transparent')}" + "".join(out)


def _rect(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.5):.2f}" height="{height:.2f}" fill="{color}"/>'


def memory_chart(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line chart of the peak device memory of each step."""
    height = 140
    top = max(row["peak_bytes"] for row in rows) or 1
    width = (_WIDTH - _LEFT) / len(rows)
    points = [
        f"{_LEFT + (i + edge) * width:.2f},{height - row['peak_bytes'] / top * (height - 24):.2f}"
        for i, row in enumerate(rows)
        for edge in (0, 1)
    ]
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLORS["tracing"]}" stroke-width="2"/>'
    return _frame("Peak memory of each step", height, [(top, format_bytes(top))], top, [line])


def _frame(title: str, height: int, ticks: list[tuple[float, str]], top: float, content: list[str]) -> str:
    grid = []
    for value, label in ticks:
        y = height - value / top * (height - 24)
        grid.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.2f}" y2="{y:.2f}" class="grid"/>')
        grid.append(f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{escape(label)}</text>')
    grid.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{height}" y2="{height}" class="axis"/>')
    grid.append(f'<text x="{_LEFT}" y="{height + 15}">steps, first to last</text>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height + _BOTTOM}" role="img" aria-label="{escape(title)}">'
        f"{''.join(grid)}{''.join(content)}</svg>"
    )


def legend() -> str:
    """Return the legend of the category colors."""
    items = (f'<span><i style="background:{color}"></i>{name}</span>' for name, color in COLORS.items())
    marks = "<span>● compiled a graph</span><span>○ interpreted a graph</span>"
    return f'<p class="legend">{"".join(items)}{marks}</p>'
