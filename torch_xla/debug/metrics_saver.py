"""Append the metrics report to a file."""

from __future__ import annotations

from torch_xla._engine.diagnostics import metrics_file as _file


def save_metrics(metrics_file: str | None = None) -> None:
    """Append ``[MetricsData; step=N]`` and the report to ``metrics_file``; N counts the reports of this process.

    The default path is XLA_METRICS_FILE, to which every step appends automatically; without either, do nothing.
    ``STDOUT`` and ``STDERR`` select the streams. With several processes each file name has the local ordinal as suffix.

    Args:
      metrics_file: path of the file, ``STDOUT`` or ``STDERR``.

    Raises:
      OSError: the file cannot be written.
    """
    _file.save(metrics_file)
