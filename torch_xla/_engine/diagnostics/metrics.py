"""Counters and metrics: what the engine did, how often, how long. Always on.

Counters live in the recorder (C++), which bumps some of them per op; metrics are samples kept here. A metric keeps its
last XLA_METRICS_SAMPLES samples for rates and percentiles, and counts and sums all of them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import step_timings

#: Names that other releases of torch_xla use for the same thing; look-ups take either.
ALIASES: dict[str, str] = {
    "CachedCompile": "CachedSyncTensors",
    "UncachedCompile": "UncachedSyncTensors",
    "TransferToDeviceTime": "TransferToServerTime",
    "TransferFromDeviceTime": "TransferFromServerTime",
}


def format_value(value: float) -> str:
    """A plain number with two decimals."""
    return f"{value:.2f}"


def format_bytes(value: float) -> str:
    """Bytes in the largest unit that leaves at least 1: ``1.50KB``."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024:
            return f"{value:.2f}{unit}"
        value /= 1024
    return f"{value:.2f}PB"


def format_time(nanoseconds: float) -> str:
    """Nanoseconds as ``01d02h03m04s005ms6.789us``, leading zero parts left out."""
    rest = max(0, round(nanoseconds))
    text = ""
    for unit, size, width in (("d", 86400 * 10**9, 2), ("h", 3600 * 10**9, 2), ("m", 60 * 10**9, 2), ("s", 10**9, 2),
                              ("ms", 10**6, 3)):  # fmt: skip
        part, rest = divmod(rest, size)
        if part or text:
            text += f"{part:0{width}d}{unit}"
    return f"{text}{rest / 1000:.3f}us"


class OpenSample:
    """A sample of time that has not ended: ``since`` (ns of perf_counter) when, None while others come before it."""

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: int | None = None

    def elapsed(self) -> float:
        """How long it has lasted."""
        return 0 if self.since is None else time.perf_counter_ns() - self.since


class Metric:
    """Samples of one quantity. Thread-safe; lives until clear()."""

    def __init__(self, name: str, show: Callable[[float], str]) -> None:
        self.name = name
        self.show = show
        self.total = 0
        self.accumulated = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=settings.XLA_METRICS_SAMPLES)
        self._lasting: list[OpenSample] = []
        self._lock = fork_safe_lock()

    def begin(self) -> OpenSample:
        """Counts a sample of time that ends later; until then it is as long as it has lasted."""
        sample = OpenSample()
        with self._lock:
            self.total += 1
            self._lasting.append(sample)
        return sample

    def end(self, sample: OpenSample, value: float) -> None:
        """What has begun has ended, and took ``value``."""
        with self._lock:
            self._lasting.remove(sample)
            self.accumulated += value
            self.samples.append((time.time(), value))

    def add(self, value: float) -> None:
        """Adds one sample, stamped with the time of now."""
        with self._lock:
            self.total += 1
            self.accumulated += value
            self.samples.append((time.time(), value))

    def data(self) -> tuple[int, float, tuple[tuple[float, float], ...]]:
        """(number of samples, their sum, the kept (time in s, value) pairs)."""
        with self._lock:
            lasting = [(time.time(), sample.elapsed()) for sample in self._lasting]
            return self.total, self.accumulated + sum(value for _, value in lasting), (*self.samples, *lasting)

    def report(self) -> str:
        """This metric's block of the report."""
        total, accumulated, samples = self.data()
        lines = [f"Metric: {self.name}", f"  TotalSamples: {total}", f"  Counter: {self.show(accumulated)}"]
        elapsed = samples[-1][0] - samples[0][0]
        if elapsed > 0:
            lines.append(f"  ValueRate: {self.show(sum(v for _, v in samples) / elapsed)} / second")
            lines.append(f"  Rate: {len(samples) / elapsed:g} / second")
        ordered = sorted(v for _, v in samples)
        parts = (f"{p * 100:g}%={self.show(ordered[int(p * len(ordered))])}" for p in settings.XLA_METRICS_PERCENTILES)
        lines.append(f"  Percentiles: {'; '.join(parts)}")
        return "\n".join(lines) + "\n"


_metrics: dict[str, Metric] = {}
_lock = fork_safe_lock()


def metric(name: str, show: Callable[[float], str] = format_value) -> Metric:
    """The metric of that name, made at its first use."""
    found = _metrics.get(name)
    if found is None:
        with _lock:
            found = _metrics.setdefault(name, Metric(name, show))
    return found


def sample(name: str, value: float, show: Callable[[float], str] = format_value) -> None:
    """Adds a sample to the metric ``name``."""
    metric(name, show).add(value)


@contextmanager
def record_time(name: str) -> Iterator[None]:
    """Adds the time that its block takes, in nanoseconds, to the metric ``name``, unless the block raises.

    The time that is the block's own also goes into this thread's step (journal), under the same name.
    """
    start = time.perf_counter_ns()
    with step_timings.timed_block(name):
        yield
    metric(name, format_time).add(time.perf_counter_ns() - start)


class _Counters(dict[str, Callable[[int], None]]):
    """What adds to a counter, by its name: a counter is there for good."""

    def __missing__(self, name: str) -> Callable[[int], None]:
        add: Callable[[int], None] = recorder.bindings().counter(name).add
        self[name] = add
        return add


_counters = _Counters()


def count(name: str, n: int = 1) -> None:
    """Adds ``n`` to the counter ``name``."""
    _counters[name](n)


def counters() -> dict[str, int]:
    """Every counter that has moved, sorted by name."""
    return dict(recorder.bindings().counters())


def is_fallback(name: str) -> bool:
    """Whether a counter is that of an operator, of any library, that ran on the CPU, or of the reading of a number.

    ``aten::nonzero`` and ``quantized::linear_dynamic`` are; ``xla::relu`` counts what was recorded.
    """
    return "::" in name and not name.startswith("xla::")


def metrics() -> dict[str, Metric]:
    """Every metric with a sample, sorted by name."""
    with _lock:
        return {name: m for name, m in sorted(_metrics.items()) if m.total}


def clear_counters() -> None:
    """Sets all counters to zero."""
    recorder.bindings().clear_counters()


def clear_metrics() -> None:
    """Forgets all samples."""
    with _lock:
        _metrics.clear()


def report(metric_names: list[str] | None = None, counter_names: list[str] | None = None) -> str:
    """The text of the metrics report, of all or of the named metrics and counters."""
    chosen_metrics, chosen_counters = metrics(), counters()
    if metric_names is not None:
        wanted = {ALIASES.get(n, n) for n in metric_names}
        chosen_metrics = {n: m for n, m in chosen_metrics.items() if n in wanted}
    if counter_names is not None:
        wanted = {ALIASES.get(n, n) for n in counter_names}
        chosen_counters = {n: v for n, v in chosen_counters.items() if n in wanted or is_fallback(n)}
    blocks = [m.report() for m in chosen_metrics.values()]
    blocks += [f"Counter: {name}\n  Value: {value}\n" for name, value in chosen_counters.items()]
    return "".join(blocks)
