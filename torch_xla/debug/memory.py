"""Inspect device memory: live buffers with the lines that created them, the peak of each step, leaks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_xla._engine import recorder as _recorder
from torch_xla._engine.diagnostics import device_memory as _memory
from torch_xla._engine.diagnostics import metrics as _metrics
from torch_xla._engine.diagnostics import step_timings as _step_timings
from torch_xla._engine.diagnostics.device_memory import BufferInfo
from torch_xla._engine.execution import executor as _executor

__all__ = ["BufferInfo", "LeakError", "buffers", "no_leak", "peak_per_step", "summary"]


class LeakError(AssertionError):
    """More device memory is in use after a block than before it."""


def buffers(device: torch.device | str | int | None = None) -> list[BufferInfo]:
    """Return every live buffer of a device (default: the current one), largest first.

    ``kind`` is upload, result (of a program), fallback (an op that ran on the CPU) or transfer (from another device).
    ``line`` is the user line that created the buffer; for a result, the line that ran the program.

    Args:
      device: an xla device, its name or its ordinal; default: the current device.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.debug import memory
      >>> x = torch.zeros(256, 256).to("xla")
      >>> torch_xla.sync()
      >>> largest = memory.buffers()[0]
      >>> largest.bytes, largest.shape
      (262144, (256, 256))
    """
    found = [info for _, info in _memory.live_buffers(_recorder.ordinal(device))]
    return sorted(found, key=lambda info: -info.bytes)


def peak_per_step() -> list[int]:
    """Return the peak bytes in use of each of the last thousand steps, oldest first.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.debug import memory
      >>> x = torch.zeros(256, 256).to("xla")
      >>> for _ in range(2):
      ...     x = x + 1
      ...     torch_xla.sync(wait=True)
      >>> max(memory.peak_per_step()) >= 256 * 256 * 4  # bytes
      True
    """
    return [step.peak_bytes for step in _step_timings.steps()]


def summary(device: torch.device | str | int | None = None, rows: int = 20) -> str:
    """Return a table of bytes and number of buffers by line and kind: the ``rows`` largest.

    Args:
      device: an xla device, its name or its ordinal; default: the current device.
      rows: maximum number of rows.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.debug import memory
      >>> x = torch.zeros(256, 256).to("xla")
      >>> torch_xla.sync()
      >>> print(memory.summary(rows=5))
      xla:0: ... in use, peak ...
    """
    ordinal = _recorder.ordinal(device)
    info = _memory.memory_info(ordinal)
    used, limit, peak = (_metrics.format_bytes(info[k]) for k in ("bytes_used", "bytes_limit", "peak_bytes_used"))
    return f"xla:{ordinal}: {used} of {limit} in use, peak {peak}\n" + _table(buffers(ordinal), rows)


def _table(found: list[BufferInfo], rows: int) -> str:
    groups: dict[tuple[str, str], list[BufferInfo]] = {}
    for info in found:
        groups.setdefault((info.line, info.kind), []).append(info)
    ranked = sorted(groups.items(), key=lambda item: -sum(i.bytes for i in item[1]))
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
    """Fail if more than ``tolerance`` additional bytes of device memory are in use after the block; for tests.

    Runs pending operations and collects garbage before and after the block. Create permanent state (an optimizer's)
    before the block.

    Args:
      device: an xla device, its name or its ordinal; default: the current device.
      tolerance: number of bytes that may remain.

    Raises:
      LeakError: lists, by line, the buffers that the block created and that are still alive.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.debug import memory
      >>> weight = torch.ones(64, device="xla")
      >>> with memory.no_leak():
      ...     loss = (weight * 2).sum()
      ...     torch_xla.sync()
      ...     del loss
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
        f"{len(alive) - len(known):+} buffers. Created in the block and alive (some may replace older ones):\n"
        + _table(new, 20)
    )


def _sync_and_collect(ordinal: int) -> tuple[set[int], int]:
    _executor.sync_device(ordinal, wait=True)
    gc.collect()
    _executor.sync_device(ordinal, wait=True)  # the collection releases buffers of other threads
    return {id(array) for array, _ in _memory.live_buffers(ordinal)}, _memory.bytes_in_use(ordinal)
