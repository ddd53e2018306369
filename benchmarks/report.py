"""What the benchmarks print: markdown tables, and a line that says where and with what they were measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from gc import collect, disable, enable
from importlib.metadata import version
from pathlib import Path
from statistics import median


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table: the first column to the left, the others to the right."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def setting() -> str:
    """Date, processor, number of cores in use, and versions."""
    model = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "jax"))
    return (
        f"{date.today()}, {model}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, {versions}"
    )


def time_in_turns(contestants: Mapping[str, Callable[[], object]], rounds: int, tokens: int) -> dict[str, float]:
    """Return milliseconds per token of each contestant: medians of rounds that are taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, decode in contestants.items():
            start = time.perf_counter()
            decode()
            times[name].append((time.perf_counter() - start) / tokens * 1e3)
    return {name: median(found) for name, found in times.items()}


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of ``values``, which are positive."""
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keeps the garbage collector from running inside a measurement; it runs before."""
    collect()
    disable()
    try:
        yield
    finally:
        enable()
