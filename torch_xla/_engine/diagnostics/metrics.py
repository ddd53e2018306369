"""Collect counters and metrics (samples of times and sizes), which are always enabled.

Counters are stored in the recorder (C++), which increments some of them per op; metrics are stored here. A metric
stores its last XLA_METRICS_SAMPLES samples for rates and percentiles; its count and sum cover all samples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import step_timings

#: Names in other releases of torch_xla -> names here. Lookups accept both.
ALIASES: dict[str, str] = {
    "CachedCompile": "CachedSyncTensors",
    "UncachedCompile": "UncachedSyncTensors",
    "TransferToDeviceTime": "TransferToServerTime",
    "TransferFromDeviceTime": "TransferFromServerTime",
}


def format_value(value: float) -> str:
    """Format a number with two decimals."""
    return f"{value:.2f}"


def format_bytes(value: float) -> str:
    """Format bytes in the largest unit with a value of at least 1: ``1.50KB``."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024:
            return f"{value:.2f}{unit}"
        value /= 1024
    return f"{value:.2f}PB"


def format_time(nanoseconds: float) -> str:
    """Format nanoseconds as ``01d02h03m04s005ms6.789us``, without leading zero units."""
    rest = max(0, round(nanoseconds))
    text = ""
    for unit, size, width in (("d", 86400 * 10**9, 2), ("h", 3600 * 10**9, 2), ("m", 60 * 10**9, 2), ("s", 10**9, 2),
                              ("ms", 10**6, 3)):  # fmt: skip
        part, rest = divmod(rest, size)
        if part or text:
            text += f"{part:0{width}d}{unit}"
    return f"{text}{rest / 1000:.3f}us"


class OpenSample:
    """A time sample of a running program: ``since`` is its start in ns of perf_counter, None while it is queued."""

    __slots__ = ("since",)

    def __init__(self) -> None:
        self.since: int | None = None

    def elapsed(self) -> float:
        """Return the time so far in ns."""
        return 0 if self.since is None else time.perf_counter_ns() - self.since


class Metric:
    """Samples of one quantity; thread-safe."""

    def __init__(self, name: str, show: Callable[[float], str]) -> None:
        self.name = name
        self.show = show
        self.total = 0
        self.accumulated = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=settings.XLA_METRICS_SAMPLES)
        self._open: list[OpenSample] = []
        self._lock = fork_safe_lock()

    def begin(self) -> OpenSample:
        """Count and return a time sample that ends later; until then its value is the time so far."""
        sample = OpenSample()
        with self._lock:
            self.total += 1
            self._open.append(sample)
        return sample

    def end(self, sample: OpenSample, value: float) -> None:
        """End an open sample with its value."""
        with self._lock:
            self._open.remove(sample)
            self.accumulated += value
            self.samples.append((time.time(), value))

    def add(self, value: float) -> None:
        """Add one sample with the current time."""
        with self._lock:
            self.total += 1
            self.accumulated += value
            self.samples.append((time.time(), value))

    def data(self) -> tuple[int, float, tuple[tuple[float, float], ...]]:
        """Return (number of samples, their sum, the stored (time in s, value) pairs)."""
        with self._lock:
            open_samples = [(time.time(), sample.elapsed()) for sample in self._open]
            return (
                self.total,
                self.accumulated + sum(value for _, value in open_samples),
                (*self.samples, *open_samples),
            )

    def report(self) -> str:
        """Return this metric's block of the report."""
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
    """Return the metric of that name; create it at its first use."""
    found = _metrics.get(name)
    if found is None:
        with _lock:
            found = _metrics.setdefault(name, Metric(name, show))
    return found


def sample(name: str, value: float, show: Callable[[float], str] = format_value) -> None:
    """Add a sample to the metric ``name``."""
    metric(name, show).add(value)


class record_time(step_timings.timed_block):
    """Context that adds its duration in nanoseconds to the metric ``name``, unless the block raises.

    The block's exclusive time is also added to this thread's step (step_timings) under the same name.
    """

    __slots__ = ()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if error[0] is None:
            metric(self.kind, format_time).add(self.total)


def add_duration(name: str, duration: int, nested: int = 0) -> None:
    """Add a duration in ns as ``record_time`` does, which costs more. ``nested``: ns that the step has already."""
    step_timings.add_time(name, duration - nested)
    metric(name, format_time).add(duration)


class _Counters(dict[str, Callable[[int], None]]):
    """Counter name -> function that adds to it. Counters are never deleted."""

    def __missing__(self, name: str) -> Callable[[int], None]:
        add: Callable[[int], None] = recorder.bindings().counter(name).add
        self[name] = add
        return add


_counters = _Counters()


def count(name: str, n: int = 1) -> None:
    """Add ``n`` to the counter ``name``."""
    _counters[name](n)


def counters() -> dict[str, int]:
    """Return every nonzero counter, sorted by name."""
    return dict(recorder.bindings().counters())


def is_fallback(name: str) -> bool:
    """Return whether a counter counts CPU fallbacks of an operator, or reads of a scalar.

    ``aten::nonzero`` and ``quantized::linear_dynamic`` do; ``xla::relu`` counts recorded ops.
    """
    return "::" in name and not name.startswith("xla::")


def metrics() -> dict[str, Metric]:
    """Return every metric with a sample, sorted by name."""
    with _lock:
        return {name: m for name, m in sorted(_metrics.items()) if m.total}


def clear_counters() -> None:
    """Set all counters to zero."""
    recorder.bindings().clear_counters()


def clear_metrics() -> None:
    """Delete all samples."""
    with _lock:
        _metrics.clear()


def report(metric_names: list[str] | None = None, counter_names: list[str] | None = None) -> str:
    """Return the metrics report as text, of all or of the named metrics and counters."""
    chosen_metrics, chosen_counters = metrics(), counters()
    if metric_names is not None:
        names = {ALIASES.get(n, n) for n in metric_names}
        chosen_metrics = {n: m for n, m in chosen_metrics.items() if n in names}
    if counter_names is not None:
        names = {ALIASES.get(n, n) for n in counter_names}
        chosen_counters = {n: v for n, v in chosen_counters.items() if n in names or is_fallback(n)}
    blocks = [m.report() for m in chosen_metrics.values()]
    blocks += [f"Counter: {name}\n  Value: {value}\n" for name, value in chosen_counters.items()]
    return "".join(blocks)
