"""Memory and properties of ``torch.xla``, under torch.cuda's names; sizes in bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.aot import hardware_specs
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import device_memory

Device = torch.device | str | int | None


def memory_allocated(device: Device = None) -> int:
    """Return the bytes of all buffers on a device (default: the current one)."""
    return device_memory.memory_info(recorder.ordinal_or_current(device))["bytes_used"]


def max_memory_allocated(device: Device = None) -> int:
    """Return the largest use since the start of the process, or since reset_peak_memory_stats."""
    return device_memory.peak_bytes(recorder.ordinal_or_current(device))


def memory_reserved(device: Device = None) -> int:
    """Return memory_allocated: XLA's allocators do not report what they hold beyond it."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """Return max_memory_allocated."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Make max_memory_allocated start from the current use. Later peaks are counted by this package, not by XLA."""
    device_memory.reset_peak(recorder.ordinal_or_current(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Do nothing: XLA's allocators do not report the sum of all allocations, which this resets on CUDA."""
    recorder.ordinal_or_current(device)


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """Return current and peak use under torch.cuda's keys, such as ``allocated_bytes.all.peak``."""
    used, peak = memory_allocated(device), max_memory_allocated(device)
    return OrderedDict(
        (f"{kind}_bytes.all.{which}", size)
        for kind in _STATISTICS
        for which, size in (("current", used), ("peak", peak))
    )


#: Of torch.cuda's statistics in bytes, those that XLA's allocators know; they are equal here.
_STATISTICS = ("active", "allocated", "reserved")


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Return ``memory_stats`` as nested dictionaries: ``["allocated_bytes"]["all"]["peak"]``."""
    used, peak = memory_allocated(device), max_memory_allocated(device)
    return {f"{kind}_bytes": {"all": {"current": used, "peak": peak}} for kind in _STATISTICS}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Return a table of the current use, the peak and the total of a device's memory, in MiB.

    Args:
      device: default: the current one.
      abbreviated: accepted for compatibility.
    """
    ordinal = recorder.ordinal_or_current(device)
    rows = (
        ("allocated", memory_allocated(ordinal)),
        ("peak", max_memory_allocated(ordinal)),
        ("total", mem_get_info(ordinal)[1]),
    )
    lines = [
        f"xla:{ordinal}, {get_device_name(ordinal)}",
        *(f"{name:<10}{size / 2**20:>12.1f} MiB" for name, size in rows),
    ]
    return "\n".join(lines) + "\n"


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total memory of a device; on the CPU, the total is the memory of the host."""
    info = device_memory.memory_info(recorder.ordinal_or_current(device))
    return max(0, info["bytes_limit"] - info["bytes_used"]), info["bytes_limit"]


def empty_cache() -> None:
    """Do nothing: XLA's allocators keep their memory."""


def get_device_name(device: Device = None) -> str:
    """Return the vendor's name of a device, such as ``TPU v4`` or ``cpu``."""
    return devices.device_kind(recorder.ordinal_or_current(device))


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of a device.

    ``peak_flops`` are the manufacturer's dense operations per second by dtype (``bf16``, ``f32``); None if unknown.
    ``major`` and ``minor`` are the compute capability of an NVIDIA GPU, else 0.
    """

    name: str
    platform: str
    total_memory: int
    peak_flops: dict[str, float] | None
    major: int = 0
    minor: int = 0


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return name, memory, peak FLOP/s and compute capability of a device."""
    ordinal = recorder.ordinal_or_current(device)
    name = devices.device_kind(ordinal)
    chip = hardware_specs.find_chip(name)
    total = device_memory.memory_info(ordinal)["bytes_limit"]
    flops = None if chip is None else chip.flops
    return DeviceProperties(name, devices.platform(), total, flops, *get_device_capability(ordinal))


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the compute capability of an NVIDIA GPU; (0, 0) for other devices, which have none."""
    text = str(getattr(devices.device(recorder.ordinal_or_current(device)), "compute_capability", ""))
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 can be used: on every platform."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes of ``torch.autocast("xla", dtype=...)``."""
    return [torch.bfloat16, torch.float16]
