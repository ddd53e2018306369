"""How much memory a device has, how much is in use, how much was in use at most, and by what.

A backend that has an allocator (GPU, TPU) is asked. The CPU has none: there the recorder's own account of buffers is
all there is, and a program's peak is what the account held when it started plus what the compiler says it needs.
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
    """Bytes of the buffers that exist on the device."""
    return int(recorder.bindings().memory_use(device)[0])


def take_step_peak(device: int) -> int:
    """The most bytes that buffers took at once since the last call."""
    return int(recorder.bindings().take_peak(device))


def memory_info(device: int) -> dict[str, int]:
    """bytes_used, bytes_limit and peak_bytes_used, and kb_free and kb_total, as older releases say it."""
    stats = devices.device(device).memory_stats() or {}
    bytes_used = stats.get("bytes_in_use", bytes_in_use(device))
    limit = stats.get("bytes_limit", host_memory_limit())
    own_peak = int(recorder.bindings().memory_use(device)[3])
    return {
        "bytes_used": bytes_used,
        "bytes_limit": limit,
        "peak_bytes_used": stats.get("peak_bytes_in_use", own_peak),
        "kb_free": max(0, limit - bytes_used) // 1024,
        "kb_total": limit // 1024,
    }


def host_memory_limit() -> int:
    """Bytes of this machine, or of the control group that the process is held in."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such group, or "max"
        return total


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """One buffer: its shape and dtype on the device, bytes, and where it was made (line "" where that is unknown)."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kind: str
    line: str


def live_buffers(device: int) -> list[tuple[jax.Array, BufferInfo]]:
    """Every buffer of the device, oldest first, with the array itself: keep no reference to it."""
    return [(array, _describe(array, size, number)) for array, size, number in recorder.bindings().buffers(device)]


def _describe(array: Any, size: int, number: int) -> BufferInfo:
    maker = buffer_provenance.provenance_from_id(number)
    return BufferInfo(tuple(array.shape), str(array.dtype), size, maker.kind, maker.line)
