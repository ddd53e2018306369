"""Counters, metrics, and the documented format of the report."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from tests.support.helpers import counts, run_script
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import metrics

# The grammar of the report, as in the documentation.
TIME = r"(?:\d{2}d)?(?:\d{2}h)?(?:\d{2}m)?(?:\d{2}s)?(?:\d{3}ms)?\d{1,3}\.\d{3}us"
BYTES = r"\d+\.\d{2}(?:B|KB|MB|GB|TB|PB)"
PLAIN = r"\d+\.\d{2}"
METRIC = r"""Metric: (?P<name>\S+)
  TotalSamples: \d+
  Counter: {value}
(?:  ValueRate: {value} / second
  Rate: [\d.]+(?:e[+-]\d+)? / second
)?  Percentiles: (?:\d+(?:\.\d+)?%={value})(?:; \d+(?:\.\d+)?%={value})*
"""
COUNTER = r"Counter: (?P<name>\S+)\n  Value: \d+\n"


def parse(report: str) -> list[tuple[str, str]]:
    """Return (kind, name) of all blocks. Raises AssertionError at the first line outside the grammar."""
    patterns = [("Metric", re.compile(METRIC.format(value=value))) for value in (TIME, BYTES, PLAIN)]
    patterns.append(("Counter", re.compile(COUNTER)))
    blocks, at = [], 0
    while at < len(report):
        found = [(kind, match) for kind, pattern in patterns if (match := pattern.match(report, at))]
        assert len(found) == 1, f"not a block of a report: {report[at : at + 300]!r}"
        kind, match = found[0]
        blocks.append((kind, match["name"]))
        at = match.end()
    return blocks


def test_documented_examples_match_the_grammar() -> None:
    """The examples of upstream's README parse; reports with a missing line, another unit or no name do not."""
    example = (
        "Metric: CompileTime\n  TotalSamples: 202\n  Counter: 06m09s401ms746.001us\n"
        "  ValueRate: 778ms572.062us / second\n  Rate: 0.425201 / second\n"
        "  Percentiles: 1%=001ms32.778us; 5%=001ms61.283us; 10%=001ms79.236us; 20%=001ms110.973us; 50%=001ms228.773us; "
        "80%=001ms339.183us; 90%=001ms434.305us; 95%=002ms921.063us; 99%=21s102ms853.173us\n"
        "Counter: CachedSyncTensors\n  Value: 395\nCounter: aten::nonzero\n  Value: 33\n"
    )
    assert parse(example) == [("Metric", "CompileTime"), ("Counter", "CachedSyncTensors"), ("Counter", "aten::nonzero")]
    for whole, broken in (("  Value: 395\n", ""), ("778ms572.062us", "778.57B"), ("CompileTime", ""), ("202", "202.5")):
        with pytest.raises(AssertionError, match="not a block of a report"):
            parse(example.replace(whole, broken))


@pytest.fixture
def busy() -> Iterator[None]:
    """A workload that moves every kind of counter, counted from zero."""
    program_cache.cache.clear()
    met.clear_all()
    x = torch.rand(3, 3).to("xla")
    for i in range(3):
        y = (x @ x * (i + 2.5)).exp()
        xm.mark_step()
        y.sum().item()
    yield
    met.clear_all()


@pytest.mark.usefixtures("busy")
def test_report() -> None:
    report = torch_xla._XLAC._xla_metrics_report()
    blocks = parse(report)
    metric_names = [name for kind, name in blocks if kind == "Metric"]
    counter_names = [name for kind, name in blocks if kind == "Counter"]
    assert blocks == [("Metric", n) for n in sorted(metric_names)] + [("Counter", n) for n in sorted(counter_names)]
    assert set(metric_names) >= {"CompileTime", "ExecuteTime", "TransferToServerTime", "TransferFromServerTime",
                                 "InboundData", "OutboundData", "TensorsGraphSize",
                                 "InputOutputAliasCount"}  # fmt: skip
    assert set(counter_names) >= {"CachedSyncTensors", "UncachedSyncTensors", "MarkStep", "CreateDataHandles",
                                  "CreateCompileHandles", "DestroyDataHandles", "CreateXlaTensor", "DestroyXlaTensor",
                                  "aten::_local_scalar_dense", "xla::mm", "xla::exp"}  # fmt: skip
    assert met.metric_names() == metric_names and met.counter_names() == counter_names
    assert parse(met.metrics_report()) == blocks


@pytest.mark.usefixtures("busy")
def test_values() -> None:
    assert met.counter_value("MarkStep") == 3
    assert met.counter_value("xla::mm") == 3
    assert met.counter_value("aten::_local_scalar_dense") == 3
    total, accumulated, samples = met.metric_data("TransferFromServerTime")
    assert total == 3 == len(samples) and accumulated == sum(value for _, value in samples) > 0
    assert [time for time, _ in samples] == sorted(time for time, _ in samples)
    assert met.metric_data("InboundData")[1] == 3 * 4 and met.metric_data("OutboundData")[1] == 9 * 4
    created, destroyed = met.counter_value("CreateXlaTensor"), met.counter_value("DestroyXlaTensor")
    assert created >= destroyed


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(("later", "ours"), metrics.ALIASES.items())
def test_later_names(later: str, ours: str) -> None:
    value = met.counter_value if ours.endswith("SyncTensors") else met.metric_data
    assert value(later) == value(ours) and value(ours) is not None
    assert later not in met.metrics_report()
    assert ours in met.short_metrics_report([later], [later])


def test_unknown_names() -> None:
    assert met.counter_value("nope") is None and met.metric_data("nope") is None


@pytest.mark.usefixtures("busy")
def test_clear() -> None:
    met.clear_counters()
    assert met.counter_names() == [] and met.metric_names() != []
    met.clear_metrics()
    assert met.metric_names() == [] and met.metrics_report() == ""
    (torch.ones(2, device="xla") + 1).cpu()
    assert met.counter_value("xla::add") == 1 and met.metric_data("InboundData")[0] == 1


@pytest.mark.usefixtures("busy")
def test_clear_all() -> None:
    met.clear_all()
    assert (met.counter_names(), met.metric_names()) == ([], [])


@pytest.mark.usefixtures("busy")
def test_short_report() -> None:
    blocks = parse(met.short_metrics_report())
    assert {name for _, name in blocks} >= {"CompileTime", "ExecuteTime", "TransferToServerTime", "MarkStep"}
    assert ("Counter", "aten::_local_scalar_dense") in blocks and ("Counter", "xla::mm") not in blocks
    chosen = parse(met.short_metrics_report(counter_names=["xla::mm", "nope"], metric_names=["InboundData"]))
    assert chosen == [("Metric", "InboundData"), ("Counter", "aten::_local_scalar_dense"), ("Counter", "xla::mm")]


@pytest.mark.usefixtures("busy")
def test_fallback_ops() -> None:
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense"]


US, MS, S = 1_000, 1_000_000, 1_000_000_000


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.000us"),
        (1, "0.001us"),
        (156_874, "156.874us"),
        (999_999, "999.999us"),
        (1_326_159, "001ms326.159us"),
        (1_266_453_982, "01s266ms453.982us"),
        (369 * S + 401 * MS + 746 * US + 1, "06m09s401ms746.001us"),  # the documents' example
        (778 * MS + 572 * US + 62, "778ms572.062us"),
        (21 * S + 102 * MS + 853 * US + 173, "21s102ms853.173us"),
        (3600 * S, "01h00m00s000ms0.000us"),
        (86400 * S + 61 * S + 5, "01d00h01m01s000ms0.005us"),
        (0.4, "0.000us"),
        (999.6, "1.000us"),
    ],
)
def test_format_time(nanoseconds: float, text: str) -> None:
    assert metrics.format_time(nanoseconds) == text
    assert re.fullmatch(TIME, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00B"), (1023, "1023.00B"), (1024, "1.00KB"), (1536, "1.50KB"), (5 * 2**20, "5.00MB"), (2**30, "1.00GB"),
     (2.5 * 2**40, "2.50TB"), (2**60, "1024.00PB")],
)  # fmt: skip
def test_format_bytes(value: float, text: str) -> None:
    assert metrics.format_bytes(value) == text and re.fullmatch(BYTES, text)


def test_format_value() -> None:
    assert [metrics.format_value(v) for v in (0, 2, 1 / 3, 1e6)] == ["0.00", "2.00", "0.33", "1000000.00"]


def test_percentiles_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(i) / 2 for i in range(1000))
    monkeypatch.setattr(metrics.time, "time", lambda: next(clock))
    metric = metrics.Metric("Test", metrics.format_value)
    metric.add(7)
    assert (
        metric.report()
        == "Metric: Test\n  TotalSamples: 1\n  Counter: 7.00\n  Percentiles: "
        + "; ".join(f"{p}%=7.00" for p in (1, 5, 10, 20, 50, 80, 90, 95, 99))
        + "\n"
    )
    for value in range(8, 107):
        metric.add(value)
    lines = metric.report().splitlines()
    total = sum(range(7, 107))
    assert lines[1:5] == ["  TotalSamples: 100", f"  Counter: {total}.00", f"  ValueRate: {total / 49.5:.2f} / second",
                          "  Rate: 2.0202 / second"]  # fmt: skip
    assert lines[5].startswith("  Percentiles: 1%=8.00; 5%=12.00; 10%=17.00; 20%=27.00; 50%=57.00; 80%=87.00")


def test_settings() -> None:
    out = run_script(
        """
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        x = torch.ones(2).to("xla")
        for _ in range(9):
            x.cpu()
        print(met.metric_data("InboundData")[:2], len(met.metric_data("InboundData")[2]))
        print(met.short_metrics_report([], ["InboundData"]))
        """,
        XLA_METRICS_SAMPLES="4",
        XLA_METRICS_PERCENTILES="0.25:0.5:0.999",
    )
    first, report = out.stdout.split("\n", 1)
    assert first == "(9, 72.0) 4"
    assert report.strip().endswith("Percentiles: 25%=8.00B; 50%=8.00B; 99.9%=8.00B")
    assert parse(report.rstrip("\n") + "\n") == [("Metric", "InboundData")]


# The expected counter changes, as in other releases; metrics by their number of samples. Others do not change.
# Scalar inputs are passed with the program, so ``mul_(4.5)`` needs no separate upload.
_WATCHED = ("CreateXlaTensor", "CreateDataHandles", "CreateCompileHandles", "CachedSyncTensors", "UncachedSyncTensors",
            "MarkStep", "CompileTime", "ExecuteTime", "ExecuteComputation", "TransferToServerTime",
            "TransferFromServerTime", "OutboundData", "InboundData", "TensorsGraphSize", "InputOutputAliasCount",
            "aten::_local_scalar_dense", "xla::mm", "xla::add", "xla::add_", "xla::mul_")  # fmt: skip
_COMPILES = {"UncachedSyncTensors": 1, "CreateCompileHandles": 1, "CompileTime": 1, "InputOutputAliasCount": 1}
_RUNS = {"ExecuteTime": 1, "ExecuteComputation": 1, "CreateDataHandles": 1, "TensorsGraphSize": 1}
_NEW = _COMPILES | _RUNS
_KNOWN = {"CachedSyncTensors": 1} | _RUNS
_READS = {"TransferFromServerTime": 1, "InboundData": 1}


def test_counter_movements() -> None:
    """The counter changes, line by line, on the same tensor."""
    program_cache.cache.clear()
    source = torch.rand(3, 3)
    kept: list[torch.Tensor] = []
    with counts() as moved:
        w = source.to("xla")
    assert moved.only(*_WATCHED) == {"CreateXlaTensor": 1, "CreateDataHandles": 1, "TransferToServerTime": 1,
                                     "OutboundData": 1}  # fmt: skip

    def check(run: Callable[[], object], expected: dict[str, int], tensors: int = 0) -> None:
        with counts() as moved:
            kept.append(run())
        found = moved.only(*_WATCHED)
        found.pop("CreateXlaTensor", 0)
        assert found == expected
        if tensors:
            assert moved["CreateXlaTensor"] == tensors

    def step(record: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            result = record()
            xm.mark_step()
            return result

        return run

    check(step(lambda: w @ w), _NEW | {"MarkStep": 1, "xla::mm": 1}, tensors=1)
    check(step(lambda: w @ w), _KNOWN | {"MarkStep": 1, "xla::mm": 1}, tensors=1)
    check(kept[-1].cpu, _READS)
    check(lambda: (w + w).cpu(), _NEW | _READS | {"xla::add": 1})
    check(lambda: (w + w).cpu(), _KNOWN | _READS | {"xla::add": 1})
    check(lambda: w.sum().item(), _NEW | _READS | {"aten::_local_scalar_dense": 1})
    check(lambda: w.sum().item(), _KNOWN | _READS | {"aten::_local_scalar_dense": 1})
    check(step(lambda: w.add_(1)), _NEW | {"MarkStep": 1, "xla::add_": 1})
    check(step(lambda: w.add_(2)), _NEW | {"MarkStep": 1, "xla::add_": 1})
    check(step(lambda: w.mul_(3.5)), _NEW | {"MarkStep": 1, "xla::mul_": 1})
    check(step(lambda: w.mul_(4.5)), _KNOWN | {"MarkStep": 1, "xla::mul_": 1})
    check(xm.mark_step, {"MarkStep": 1})

    def dropped() -> None:
        w @ w
        xm.mark_step()

    check(dropped, {"MarkStep": 1, "xla::mm": 1})


def test_fallback_movements() -> None:
    """A CPU fallback: one execution for its inputs, a download for each input, an upload for each result."""
    x = torch.tensor([0.0, 1.0, 2.0]).to("xla") * 2
    with counts() as moved, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x.nonzero()
    assert moved.fallbacks == {"aten::nonzero"} and moved["aten::nonzero"] == 1
    assert moved.executions == 1
    assert moved["TransferFromServerTime"] == moved["TransferToServerTime"] == 1


def _execute_time() -> tuple[int, float]:
    """Return (number of programs, their time in s)."""
    total, accumulated, samples = met.metric_data("ExecuteTime") or (0, 0.0, ())
    assert total == len(samples) or total > 1024
    return total, accumulated / 1e9


def test_execute_time_is_of_the_program_not_of_its_launch() -> None:
    """ExecuteTime counts programs at their launch, with the time so far; reading the metric does not wait."""
    x = torch.rand(800, 800, device="xla") / 800
    for _ in range(2):  # compiled in the first iteration
        torch_xla.sync(wait=True)
        count, before = _execute_time()
        y = x
        for _ in range(30):
            y = y @ x
        start = time.perf_counter()
        torch_xla.sync()
        launched = time.perf_counter() - start
        assert _execute_time()[0] == count + 1
        y = (y @ x) @ x
        torch_xla.sync(wait=True)
        elapsed = time.perf_counter() - start
        total, after = _execute_time()
        assert total == count + 2
    assert launched < 0.5 * elapsed < after - before < 1.1 * elapsed, (launched, elapsed, after - before)


def test_open_samples_count_the_time_so_far() -> None:
    metric = metrics.Metric("Some", metrics.format_time)
    metric.add(1e9)
    first, second = metric.begin(), metric.begin()
    assert metric.data()[:2] == (3, 1e9), "both are queued"
    first.since = time.perf_counter_ns() - 10**9
    total, accumulated, samples = metric.data()
    assert (total, len(samples)) == (3, 3) and 2e9 <= accumulated < 3e9
    assert "TotalSamples: 3" in metric.report()
    metric.end(first, 5e9)
    metric.end(second, 7e9)
    assert (metric.data()[:2], [value for _, value in metric.data()[2]]) == ((3, 13e9), [1e9, 5e9, 7e9])


def test_exit_during_a_program() -> None:
    """Exit is silent: the thread that waits for the program is not inside XLA during finalization."""
    code = """
        import gc, torch, torch_xla
        gc.unfreeze()  # ends as a new interpreter does
        x = torch.rand(800, 800, device="xla") / 800
        torch_xla.sync(wait=True)
        for _ in range(30):
            x = x @ x
        torch_xla.sync()
    """
    run_script(code)
