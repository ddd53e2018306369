"""Parsing metrics reports, and comparing a report with earlier ones."""

from __future__ import annotations

import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xla.debug import metrics_compare_utils as compare

REPORT = """Metric: CompileTime
  TotalSamples: 202
  {word}: 06m09s401ms746.001us
  ValueRate: 778ms572.062us / second
  Rate: 0.425201 / second
  Percentiles: 1%=001ms32.778us; 50%=001ms228.773us; 99.9%=21s102ms853.173us
Metric: InboundData
  TotalSamples: 2
  {word}: 1.50KB
  Percentiles: 50%=512.00B
Metric: TensorsGraphSize
  TotalSamples: 1
  {word}: 7.00
  Percentiles: 50%=7.00
Counter: CachedSyncTensors
  Value: 395
Counter: aten::nonzero
  Value: 33
"""


@pytest.mark.parametrize("word", ["Counter", "Accumulator"])
def test_both_field_names(word: str) -> None:
    found = compare.parse_metrics_report(REPORT.format(word=word))
    assert found == pytest.approx(
        {
            "CompileTime__TotalSamples": 202,
            "CompileTime__Accumulator_sec": 369.401746001,
            "CompileTime__ValueRate_sec": 0.778572062,
            "CompileTime__Rate": 0.425201,
            "CompileTime__Percentile_1_sec": 0.001032778,
            "CompileTime__Percentile_50_sec": 0.001228773,
            "CompileTime__Percentile_99.9_sec": 21.102853173,
            "InboundData__TotalSamples": 2,
            "InboundData__Accumulator_mb": 1.5 / 1024,
            "InboundData__Percentile_50_mb": 512 / 2**20,
            "TensorsGraphSize__TotalSamples": 1,
            "TensorsGraphSize__Accumulator": 7.0,
            "TensorsGraphSize__Percentile_50": 7.0,
            "CachedSyncTensors__Value": 395,
            "aten::nonzero__Value": 33,
        }
    )


def test_as_text() -> None:
    found = compare.parse_metrics_report(REPORT.format(word="Counter"), dehumanize=False)
    assert found["CompileTime__Accumulator"] == "06m09s401ms746.001us"
    assert found["InboundData__Accumulator"] == "1.50KB" and found["CachedSyncTensors__Value"] == "395"


def test_parses_this_release() -> None:
    (torch.ones(3).to("xla") * 3 + 1).sum().item()
    found = compare.parse_metrics_report(met.metrics_report())
    assert found["MarkStep__Value"] == met.counter_value("MarkStep")
    total, accumulated, _ = met.metric_data("ExecuteTime")
    assert found["ExecuteTime__TotalSamples"] == total
    assert found["ExecuteTime__Accumulator_sec"] == pytest.approx(accumulated / 1e9, abs=1e-9)


def test_not_a_report() -> None:
    for text in ("hello", "Metric: A\n  Nonsense: 3\n", "  TotalSamples: 3\n", "Counter: A\n  Value: three\n"):
        with pytest.raises(ValueError, match=r"not a line|could not convert|invalid literal"):
            compare.parse_metrics_report(text)


def _reports(*values: int) -> list[str]:
    return [f"Counter: Steps\n  Value: {value}\n" for value in values]


def test_data_points() -> None:
    points = compare.get_data_points_from_metrics_reports([*_reports(3, 5), "Counter: Other\n  Value: 1\n"])
    assert points == {"Steps__Value": [3, 5], "Other__Value": [1]}


def test_compare() -> None:
    points = compare.get_data_points_from_metrics_reports(_reports(10, 12, 14))
    assert compare.compare_metrics(points, *_reports(15)) == ""
    difference = compare.compare_metrics(points, *_reports(16))
    assert difference.startswith("Steps__Value: v <= v_mean + (v_stddev * 2.0) does not hold: v=16, v_mean=12")
    assert (
        compare.compare_metrics(points, *_reports(16), {"Steps__Value_expression": "v < 20 and not v == v_max"}) == ""
    )
    assert compare.compare_metrics(points, *_reports(16), {"base_expression": "-1 < v <= v_max * 1.0"}) != ""
    assert compare.compare_metrics(points, "Counter: New\n  Value: 1\n") == (
        "Steps__Value: not in the report\nNew__Value: not in any earlier report (now 1)"
    )


@pytest.mark.parametrize("expression", ["__import__('os')", "v.real", "[v]", "w < 3", "v @ v", "'a' < 'b'"])
def test_expressions_are_arithmetic(expression: str) -> None:
    points = compare.get_data_points_from_metrics_reports(_reports(1))
    with pytest.raises(ValueError, match=r"^compare_metrics: .* may use v, v_mean"):
        compare.compare_metrics(points, *_reports(1), {"base_expression": expression})
