"""What the memory of a device is used for: every buffer with the line that made it, the peak of each step, leaks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_xla._engine import recorder as _recorder
from torch_xla._engine.diagnostics import device_memory as _memory
from torch_xla._engine.diagnostics import metrics as _metrics
from torch_xla._engine.diagnostics import step_timings as _journal
from torch_xla._engine.diagnostics.device_memory import BufferInfo
from torch_xla._engine.execution import executor as _executor

__all__ = ["BufferInfo", "LeakError", "buffers", "no_leak", "peak_per_step", "summary"]


class LeakError(AssertionError):
    """A block has left more in the device's memory than it found."""


def buffers(device: torch.device | str | int | None = None) -> list[BufferInfo]:
    """Every buffer of a device (default: the current one), largest first: shape, dtype, bytes, and what made it.

    ``kind`` is upload, result (of a program), fallback (an op that ran on the CPU) or transfer (from another device);
    ``line`` is the user's at that time: for a result the one that had the program run.
    """
    found = [info for _, info in _memory.live_buffers(_recorder.ordinal(device))]
    return sorted(found, key=lambda info: -info.bytes)


def peak_per_step() -> list[int]:
    """The most bytes that were in use at once in each of the last thousand steps, oldest first."""
    return [step.peak_bytes for step in _journal.steps()]


def summary(device: torch.device | str | int | None = None, rows: int = 20) -> str:
    """A table: bytes and number of buffers by the line that made them, the largest ``rows`` lines first."""
    ordinal = _recorder.ordinal(device)
    info = _memory.memory_info(ordinal)
    used, limit, peak = (_metrics.format_bytes(info[k]) for k in ("bytes_used", "bytes_limit", "peak_bytes_used"))
    return f"xla:{ordinal}: {used} in use of {limit}, at most {peak}\n" + _table(buffers(ordinal), rows)


def _table(found: list[BufferInfo], rows: int) -> str:
    places: dict[tuple[str, str], list[BufferInfo]] = {}
    for info in found:
        places.setdefault((info.line, info.kind), []).append(info)
    ranked = sorted(places.items(), key=lambda item: -sum(i.bytes for i in item[1]))
    lines = []
    for (line, kind), group in ranked[:rows]:
        size = _metrics.format_bytes(sum(i.bytes for i in group))
        largest = f"{group[0].dtype}{list(group[0].shape)}"
        lines.append(f"  {size:>10}  {len(group):>5} × {kind:<8}  {line or 'unknown line'}  (largest: {largest})")
    if len(ranked) > rows:
        lines.append(f"  and {len(ranked) - rows} more lines")
    return "\n".join(lines) + "\n" if lines else ""


@contextmanager
def no_leak(device: torch.device | str | int | None = None, tolerance: int = 0) -> Iterator[None]:
    """For tests: the block may leave at most ``tolerance`` bytes more in the device's memory than it found.

    Runs what is pending and collects garbage before and after. What a first pass makes for good (an optimizer's state)
    belongs before the block. Raises LeakError that lists, by line, the buffers that the block has made and that are
    still alive; an error of the block passes through.
    """
    ordinal = _recorder.ordinal(device)
    known, before = _sync_and_collect(ordinal)
    yield
    alive, after = _sync_and_collect(ordinal)
    if after - before <= tolerance:
        return
    new = [info for array, info in _memory.live_buffers(ordinal) if id(array) not in known]
    new.sort(key=lambda info: -info.bytes)
    raise LeakError(
        f"no_leak: xla:{ordinal} holds {_metrics.format_bytes(after - before)} more than before the block, in "
        f"{len(alive) - len(known):+} buffers. Made in the block and still alive (some may replace older ones):\n"
        + _table(new, 20)
    )


def _sync_and_collect(ordinal: int) -> tuple[set[int], int]:
    _executor.sync_device(ordinal, wait=True)
    gc.collect()
    _executor.sync_device(ordinal, wait=True)  # buffers that died on other threads are released by a collection
    return {id(array) for array, _ in _memory.live_buffers(ordinal)}, _memory.bytes_in_use(ordinal)
