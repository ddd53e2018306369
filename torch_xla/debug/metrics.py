"""Counters and metrics of this process: what was compiled, executed, transferred, and what ran on the CPU."""

from __future__ import annotations

from torch_xla._engine.diagnostics import metrics as _metrics

_SHORT_METRICS = ["CompileTime", "ExecuteTime", "TransferToServerTime", "TransferFromServerTime"]
_SHORT_COUNTERS = ["CachedSyncTensors", "MarkStep"]


def counter_names() -> list[str]:
    """The names of all counters that have moved."""
    return list(_metrics.counters())


def counter_value(name: str) -> int | None:
    """The value of a counter, under this release's name or an alias of it; None if it has not moved."""
    values = _metrics.counters()
    return values.get(name, values.get(_metrics.ALIASES.get(name, name)))


def metric_names() -> list[str]:
    """The names of all metrics that have a sample."""
    return list(_metrics.metrics())


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """(number of samples, their sum, the last (time in s, value) pairs); times are in ns. None without samples."""
    found = _metrics.metrics().get(_metrics.ALIASES.get(name, name))
    return found.data() if found else None


def clear_counters() -> None:
    """Sets all counters to zero."""
    _metrics.clear_counters()


def clear_metrics() -> None:
    """Forgets the samples of all metrics."""
    _metrics.clear_metrics()


def clear_all() -> None:
    """Forgets all counters and metrics."""
    clear_counters()
    clear_metrics()


def metrics_report() -> str:
    """The report of all metrics and counters, as text."""
    return _metrics.report()


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """The report of the named ones, by default compilations, executions, transfers, steps and CPU fallbacks."""
    return _metrics.report(metric_names or _SHORT_METRICS, counter_names or _SHORT_COUNTERS)


def executed_fallback_ops() -> list[str]:
    """The ops that ran on the CPU instead of the device, such as ``aten::nonzero``."""
    return [name for name in counter_names() if _metrics.is_fallback(name)]
