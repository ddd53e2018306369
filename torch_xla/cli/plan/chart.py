"""Draws the memory of combinations against their time as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from torch_xla.cli.formatting import format_size
from torch_xla.cli.plan.table import format_time

_COLORS = ("#4c78a8", "#e8a33d", "#59a14f", "#b07aa1", "#8c564b", "#d64550", "#17becf", "#9c9c9c")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 420, 80, 20, 16, 40


def color_of(target: str, targets: Sequence[str]) -> str:
    """Return the color of a target."""
    return _COLORS[targets.index(target) % len(_COLORS)]


def memory_chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a point per row, with logarithmic axes, and the memory of each target as a dashed line."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    sizes = [row["memory"]["required"] for row in rows] + [row["memory"]["capacity"] for row in rows]
    across = _Axis([row["seconds"] for row in rows], _LEFT, _WIDTH - _RIGHT)
    up = _Axis(sizes, _HEIGHT - _BOTTOM, _TOP)
    parts = [_x_tick(across.position(value), format_time(value)) for value in across.ticks()]
    parts += [_y_tick(up.position(value), format_size(value)) for value in up.ticks()]
    for target in targets:
        row = next(row for row in rows if row["target"] == target)
        y, color = up.position(row["memory"]["capacity"]), color_of(target, targets)
        parts.append(
            f'<line class="capacity" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color}" '
            f'stroke-dasharray="6 4"><title>memory of a chip of {escape(target)}</title></line>'
        )
    for number, row in enumerate(rows):
        x, y = across.position(row["seconds"]), up.position(row["memory"]["required"])
        title = f"{row['label']}: {format_time(row['seconds'])}, {format_size(row['memory']['required'])} per chip"
        parts.append(
            f'<circle class="combination" data-row="{number}" cx="{x:.1f}" cy="{y:.1f}" r="6" '
            f'fill="{color_of(row["target"], targets)}" fill-opacity="0.8"><title>{escape(title)}</title></circle>'
        )
    label = f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">estimated time of a step</text>'
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="memory of a chip against the time of a step">'
        f"{''.join(parts)}{label}</svg>"
    )
    legend = "".join(f'<span><i style="background: {color_of(t, targets)}"></i>{escape(t)}</span>' for t in targets)
    return f'<p class="legend">{legend}<span>dashed: memory of a chip</span></p>{svg}'


class _Axis:
    """A logarithmic axis over positive values, with a margin on both sides. It has no state that changes."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        positive = [value for value in values if value > 0] or [1.0]
        self._low, self._high = min(positive) / 1.2, max(positive) * 1.2
        self._start, self._end = start, end

    def position(self, value: float) -> float:
        share = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 times powers of ten, at most about eight."""
        exponents = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
        found = [m * 10.0**e for e in exponents for m in (1, 2, 5) if self._low <= m * 10.0**e <= self._high]
        return found if len(found) <= 8 else found[:: math.ceil(len(found) / 8)]


def _x_tick(x: float, text: str) -> str:
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
    return f'{line}<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(text)}</text>'


def _y_tick(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
