"""The metrics report, appended to a file."""

from __future__ import annotations

from torch_xla._engine.diagnostics import metrics_file as _file


def save_metrics(metrics_file: str | None = None) -> None:
    """Appends ``[MetricsData; step=N]`` and the report to ``metrics_file``; N counts the reports of this process.

    Without a path the one of XLA_METRICS_FILE is taken, to which every step appends by itself; without either nothing
    happens. ``STDOUT`` and ``STDERR`` stand for the streams. Where several processes train together each writes to a
    file of its own, with its local ordinal as suffix. Raises OSError where the file cannot be written.
    """
    _file.save(metrics_file)
