"""Where a step's time went: ``print(torch_xla.debug.report())``, and as a page: ``report().save("report.html")``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_xla.debug import report_data, report_html, report_text


class Report:
    """The steps of this process so far, summed up once, when it is made. Prints as text."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def as_dict(self) -> dict[str, Any]:
        """All numbers, in types that json can write; times in ms, sizes in bytes. report_data.py names the fields."""
        return self._data

    def as_html(self) -> str:
        """A page with charts that needs nothing else: no network, no other file."""
        return report_html.render_html(self._data)

    def save(self, path: str | Path) -> Path:
        """Writes the page to ``path`` and returns it. Raises OSError where that cannot be written."""
        path = Path(path)
        path.write_text(self.as_html(), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return report_text.render_text(self._data)

    __repr__ = __str__


def report(last: int | None = None) -> Report:
    """Where the time of the ``last`` steps went (default: of all that are known, at most a thousand).

    A step ends at a barrier: torch_xla.sync(), xm.mark_step(), a loader's. Its time is split into input (waiting for a
    DataLoader), tracing (Python, and recording ops), compile, execute (starting programs), transfers, waiting (for
    values of the device), fallbacks (ops on the CPU) and other. Raises ValueError for a ``last`` below 1.
    """
    if last is not None and last < 1:
        raise ValueError(f"report: last={last}: expected at least 1 step")
    return Report(report_data.build_report(last))
