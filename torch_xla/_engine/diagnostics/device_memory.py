"""Report device memory: capacity, use, peak use, and the live buffers.

GPU and TPU backends have an allocator with statistics. The CPU backend has none: there the recorder counts the bytes of
buffers, and the peak of a program is the count at its launch plus the memory that the compiler reports for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import buffer_provenance


def bytes_in_use(device: int) -> int:
    """Return the bytes of all live buffers on a device."""
    return int(recorder.bindings().memory_use(device)[0])


#: Device -> its peak from the last reset_peak to the last take_step_peak, and the peak of that step before the reset.
_peaks: dict[int, tuple[int, int]] = {}


def take_step_peak(device: int) -> int:
    """Return the peak bytes of buffers since the last call."""
    peak = int(recorder.bindings().take_peak(device))
    if device in _peaks:
        since_reset, before_reset = _peaks[device]
        _peaks[device] = max(since_reset, peak), 0
        return max(peak, before_reset)
    return peak


def reset_peak(device: int) -> None:
    """Make ``peak_bytes`` start from the current use of a device."""
    peak = int(recorder.bindings().take_peak(device))
    _peaks[device] = bytes_in_use(device), max(peak, _peaks.get(device, (0, 0))[1])


def peak_bytes(device: int) -> int:
    """Return the peak of a device since its last ``reset_peak``, or that of the process."""
    if device not in _peaks:
        return memory_info(device)["peak_bytes_used"]
    return max(_peaks[device][0], int(recorder.bindings().memory_use(device)[1]))


def memory_info(device: int) -> dict[str, int]:
    """Return bytes_used, bytes_limit, peak_bytes_used, and the kb_free and kb_total of older releases."""
    stats = devices.device(device).memory_stats() or {}
    bytes_used = stats.get("bytes_in_use", bytes_in_use(device))
    limit = stats.get("bytes_limit", host_memory_limit())
    counted_peak = int(recorder.bindings().memory_use(device)[3])
    return {
        "bytes_used": bytes_used,
        "bytes_limit": limit,
        "peak_bytes_used": stats.get("peak_bytes_in_use", counted_peak),
        "kb_free": max(0, limit - bytes_used) // 1024,
        "kb_total": limit // 1024,
    }


def host_memory_limit() -> int:
    """Return the memory of this machine in bytes, or the limit of this process's control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return total


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A live buffer: shape and dtype on the device, bytes, and provenance (line "" if unknown)."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str
    line: str


def live_buffers(device: int) -> list[tuple[jax.Array, BufferInfo]]:
    """Return every buffer of a device with its array, oldest first. Do not retain the arrays."""
    return [(array, _describe(array, size, number)) for array, size, number in recorder.bindings().buffers(device)]


def _describe(array: Any, size: int, number: int) -> BufferInfo:
    origin = buffer_provenance.provenance_from_id(number)
    return BufferInfo(tuple(array.shape), str(array.dtype), size, origin.kind, origin.line)
