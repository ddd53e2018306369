"""Report how steps spend their time: ``print(torch_xla.debug.report())``, or ``report().save("report.html")``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_xla.debug import report_data, report_html, report_text


class Report:
    """A summary of this process's steps at the time of its creation; ``str()`` returns it as text.

    Args:
      data: the result of ``as_dict``.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def as_dict(self) -> dict[str, Any]:
        """Return the data in JSON-compatible types; times in ms, sizes in bytes. report_data.py lists the fields."""
        return self._data

    def as_html(self) -> str:
        """Return a self-contained HTML page with charts."""
        return report_html.render_html(self._data)

    def save(self, path: str | Path) -> Path:
        """Write the HTML page to ``path`` and return the path.

        Args:
          path: the file; it is replaced.

        Raises:
          OSError: it cannot be written.
        """
        path = Path(path)
        path.write_text(self.as_html(), encoding="utf-8")
        return path

    def __str__(self) -> str:
        return report_text.render_text(self._data)

    __repr__ = __str__


def report(last: int | None = None) -> Report:
    """Return a report of how the ``last`` steps spent their time (default: all recorded steps).

    A step ends at a barrier: torch_xla.sync(), xm.mark_step(), or a device loader. Its time is split into input
    (waiting for a DataLoader), tracing (Python and recording), compile, execute (launching programs), transfers,
    waiting (for device values), fallbacks (ops on the CPU) and other.

    Args:
      last: number of steps; default: all recorded steps, at most 1000.

    Returns:
      The report; ``str()`` of it is text, ``save`` writes an HTML page.

    Raises:
      ValueError: ``last`` is below 1.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> x = torch.ones(2, device="xla")
      >>> for _ in range(3):
      ...     x = x * 2
      ...     torch_xla.sync()
      >>> report = torch_xla.debug.report(last=3)  # print(report) shows it as text
      >>> report.save("report.html").name
      'report.html'
    """
    if last is not None and last < 1:
        raise ValueError(f"report: last={last}: expected at least 1 step")
    return Report(report_data.build_report(last))
