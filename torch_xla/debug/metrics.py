"""Read the counters and metrics of this process: compilations, executions, transfers, CPU fallbacks."""

from __future__ import annotations

from torch_xla._engine.diagnostics import metrics as _metrics

_SHORT_METRICS = ["CompileTime", "ExecuteTime", "TransferToServerTime", "TransferFromServerTime"]
_SHORT_COUNTERS = ["CachedSyncTensors", "MarkStep"]


def counter_names() -> list[str]:
    """Return the names of all nonzero counters.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> "MarkStep" in met.counter_names()
      True
    """
    return list(_metrics.counters())


def counter_value(name: str) -> int | None:
    """Return the value of a counter, by its name or an alias; None if it is zero.

    Args:
      name: name of a counter, such as ``MarkStep``, or upstream's name for it.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> met.clear_all()
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> met.counter_value("MarkStep")
      1
    """
    values = _metrics.counters()
    return values.get(name, values.get(_metrics.ALIASES.get(name, name)))


def metric_names() -> list[str]:
    """Return the names of all metrics that have a sample."""
    return list(_metrics.metrics())


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """Return (number of samples, sum, last (time in s, value) pairs), durations in ns; None without samples.

    Args:
      name: name of a metric, such as ``CompileTime``, or upstream's name for it.

    Examples:
      Number and total time of the executions so far:

      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> met.clear_all()
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> count, nanoseconds, samples = met.metric_data("ExecuteTime")
      >>> count
      1
    """
    found = _metrics.metrics().get(_metrics.ALIASES.get(name, name))
    return found.data() if found else None


def clear_counters() -> None:
    """Set all counters to zero."""
    _metrics.clear_counters()


def clear_metrics() -> None:
    """Delete the samples of all metrics."""
    _metrics.clear_metrics()


def clear_all() -> None:
    """Clear all counters and metrics.

    Examples:
      Count the compilations of a part of a program:

      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> torch_xla.sync()
      >>> met.clear_all()
      >>> print(met.metric_data("CompileTime"))
      None
    """
    clear_counters()
    clear_metrics()


def metrics_report() -> str:
    """Return the report of all metrics and counters as text.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> print(met.metrics_report())  # doctest: +ELLIPSIS
      Metric: ...
    """
    return _metrics.report()


def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """Return the report of named metrics and counters; default: compilation, execution, transfers, fallbacks.

    Args:
      counter_names: counters to include; default: ``CachedSyncTensors`` and ``MarkStep``.
      metric_names: metrics to include; default: the times of compilation, execution and transfers.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> met.clear_all()
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> print(met.short_metrics_report(counter_names=["MarkStep"], metric_names=["ExecuteTime"]))
      Metric: ExecuteTime
      ...
      Counter: MarkStep
        Value: 1
    """
    return _metrics.report(metric_names or _SHORT_METRICS, counter_names or _SHORT_COUNTERS)


def executed_fallback_ops() -> list[str]:
    """Return the ops that ran on the CPU instead of the device, such as ``aten::nonzero``.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> met.clear_all()
      >>> total = torch.arange(4, device="xla").sum()
      >>> torch_xla.sync()
      >>> met.executed_fallback_ops()  # all ops ran on the device
      []
    """
    return [name for name in counter_names() if _metrics.is_fallback(name)]
