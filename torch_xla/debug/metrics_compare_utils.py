"""Parse metrics reports, and compare a new report with earlier ones.

Accepts the reports of all releases: the third line of a metric is ``Counter:`` or ``Accumulator:``.
"""

from __future__ import annotations

import ast
import operator
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_TIME = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?(?:(\d+(?:\.\d+)?)us)?")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)(B|KB|MB|GB|TB|PB)")
_SECONDS = (86400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6)  # of the groups of _TIME
_MEGABYTES = {"B": 2.0**-20, "KB": 2.0**-10, "MB": 1.0, "GB": 2.0**10, "TB": 2.0**20, "PB": 2.0**30}

DEFAULT_CONFIG = {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """Return the values of a report by ``<metric>__<field>``, such as ``CompileTime__TotalSamples``.

    The fields of a metric are TotalSamples, Accumulator, ValueRate, Rate and percentiles (``Percentile_50``); the field
    of a counter is Value.

    Args:
      dehumanize: convert values to numbers: times in seconds and bytes in MB (2**20), with the name suffixes ``_sec``
        and ``_mb``. Otherwise the values are the text of the report.

    Raises:
      ValueError: a line is not part of a metrics report.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.metrics as met
      >>> from torch_xla.debug.metrics_compare_utils import parse_metrics_report
      >>> met.clear_all()
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
      >>> parse_metrics_report(met.metrics_report())["MarkStep__Value"]
      1
    """
    found: dict[str, Any] = {}
    for name, field, text in _fields(report):
        key, value = f"{name}__{field}", text
        if dehumanize:
            number, unit = _number(text)
            found[key + unit] = number
        else:
            found[key] = value
    return found


def get_data_points_from_metrics_reports(metrics_reports: Sequence[str]) -> dict[str, list[float]]:
    """Return the values of each key over the reports, in order; a report without the key is skipped.

    Args:
      metrics_reports: texts of metrics_report().
    """
    points: dict[str, list[float]] = {}
    for report in metrics_reports:
        for key, value in parse_metrics_report(report).items():
            points.setdefault(key, []).append(value)
    return points


def compare_metrics(
    data_points: Mapping[str, Sequence[float]], metrics_report: str, config: Mapping[str, str] | None = None
) -> str:
    """Return the unexpected values of a report compared with earlier ``data_points``, a line each; "" if none.

    ``config["base_expression"]`` is true for expected values: an expression of ``v``, the new value, and of ``v_mean``,
    ``v_stddev``, ``v_min`` and ``v_max`` of the earlier values. ``config["<name>_expression"]`` overrides it for one
    value. New and missing values are also reported.

    Args:
      data_points: the result of get_data_points_from_metrics_reports for earlier reports.
      metrics_report: the text of the report to check.
      config: which keys to compare, and how: see the module.

    Raises:
      ValueError: an expression contains more than arithmetic and comparisons.
    """
    config = {**DEFAULT_CONFIG, **(config or {})}
    new = parse_metrics_report(metrics_report)
    lines = [f"{key}: not in the report" for key in data_points if key not in new]
    for key, value in new.items():
        earlier = data_points.get(key)
        if not earlier:
            lines.append(f"{key}: not in any earlier report (now {value:g})")
            continue
        expression = config.get(f"{key}_expression", config["base_expression"])
        names = {
            "v": value,
            "v_mean": statistics.fmean(earlier),
            "v_stddev": statistics.pstdev(earlier),
            "v_min": min(earlier),
            "v_max": max(earlier),
        }
        if not _evaluate(ast.parse(expression, mode="eval").body, names, expression):
            lines.append(f"{key}: {expression} does not hold: " + ", ".join(f"{n}={x:g}" for n, x in names.items()))
    return "\n".join(lines)


def _fields(report: str) -> Iterator[tuple[str, str, str]]:
    name = ""
    for line in report.splitlines():
        if not line.strip() or line.startswith("[MetricsData;"):
            continue
        key, colon, text = line.strip().partition(": ")
        if not colon:
            raise ValueError(f"parse_metrics_report: not a line of a metrics report: {line!r}")
        if not line.startswith(" ") and key in ("Metric", "Counter"):
            name = text
        elif key == "Percentiles":
            for part in text.split("; "):
                percent, _, value = part.partition("=")
                yield name, f"Percentile_{percent.rstrip('%')}", value
        elif name and key in ("TotalSamples", "Accumulator", "Counter", "ValueRate", "Rate", "Value"):
            yield name, "Accumulator" if key == "Counter" else key, text.removesuffix(" / second")
        else:
            raise ValueError(f"parse_metrics_report: not a line of a metrics report: {line!r}")


def _number(text: str) -> tuple[float, str]:
    """Return (value, unit suffix). Raises ValueError for text that is not a time, bytes or a number."""
    if size := _BYTES.fullmatch(text):
        return float(size[1]) * _MEGABYTES[size[2]], "_mb"
    time = _TIME.fullmatch(text)
    if time and text:
        return sum(float(part) * unit for part, unit in zip(time.groups(), _SECONDS, strict=True) if part), "_sec"
    return float(text) if "." in text or "e" in text else int(text), ""


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Not: operator.not_,
}  # fmt: skip


def _evaluate(node: ast.AST, names: Mapping[str, float], expression: str) -> Any:
    def value(part: ast.AST) -> Any:
        return _evaluate(part, names, expression)

    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](value(node.left), value(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](value(node.operand))
    if isinstance(node, ast.BoolOp):
        parts = (value(part) for part in node.values)
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare) and all(type(op) in _OPERATORS for op in node.ops):
        terms = [value(node.left), *(value(right) for right in node.comparators)]
        return all(_OPERATORS[type(op)](a, b) for op, a, b in zip(node.ops, terms, terms[1:], strict=False))
    raise ValueError(f"compare_metrics: {expression!r} may use {', '.join(names)}, numbers, arithmetic and comparisons")
