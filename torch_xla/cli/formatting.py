"""Sizes, ages and tables as text, and their parsing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

_SIZES = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def format_size(size: float) -> str:
    """Return a number of bytes as text, e.g. ``12.3 MB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_age(seconds: float) -> str:
    """Return an age as text in its largest unit, e.g. ``3 h``."""
    for unit, length in reversed(_AGES.items()):
        if unit != "w" and seconds >= length:
            return f"{seconds / length:.0f} {'min' if unit == 'm' else unit}"
    return "0 s"


def parse_size(text: str) -> int:
    """Parse ``500MB`` or ``2G``. Raises argparse's error."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB or 2GB")
    return round(float(found[1]) * _SIZES[found[2]])


def parse_age(text: str) -> int:
    """Parse ``30d``, ``12h`` or ``2w`` to seconds. Raises argparse's error."""
    found = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip().lower())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 12h, 30d or 2w")
    return int(found[1]) * _AGES[found[2]]


def format_table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Align the columns of rows, of which the first is the heading; columns in ``right`` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
