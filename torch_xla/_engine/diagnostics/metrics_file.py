"""Append the metrics report to XLA_METRICS_FILE at the end of every step."""

from __future__ import annotations

import itertools
import sys

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import metrics

_steps = itertools.count()
_lock = fork_safe_lock()


def save(path: str | None = None) -> None:
    """Append ``[MetricsData; step=N]`` and the report to ``path``, by default XLA_METRICS_FILE; N counts the calls.

    ``STDOUT`` and ``STDERR`` select the streams. With several processes the file name has the suffix
    ``.<local ordinal>``. Without a path, do nothing. Raises OSError if the file cannot be written.
    """
    path = path or settings.XLA_METRICS_FILE
    if not path:
        return
    with _lock:
        text = f"[MetricsData; step={next(_steps)}]\n{metrics.report()}\n"
        stream = {"STDOUT": sys.stdout, "STDERR": sys.stderr}.get(path)
        if stream is not None:
            print(text, file=stream, end="", flush=True)
            return
        if settings.WORLD_SIZE > 1:
            path = f"{path}.{settings.LOCAL_RANK}"
        with open(path, "a") as file:
            file.write(text)
