"""Which kind of device this process uses, answered without starting it: processes fork after asking.

``jax._src.hardware_utils`` is private to jax (checked on 0.10.2); nothing public counts TPU chips without a backend.
"""

from __future__ import annotations

import importlib.util

from jax._src import hardware_utils

from torch_xla._engine import legacy
from torch_xla._engine.settings import settings

#: Devices that jax makes of one chip, where it is not one.
_DEVICES_PER_CHIP = {"v2": 2, "v3": 2, "tpu7x": 2}


def requested() -> legacy.Choice | None:
    """The kind that the user has asked for, by PJRT_DEVICE or the old configuration; None where nobody has asked.

    Raises what legacy.choice raises.
    """
    if settings.PJRT_DEVICE:
        return legacy.Choice(settings.PJRT_DEVICE, settings.CPU_NUM_DEVICES, "PJRT_DEVICE")
    old = legacy.choice()
    if old is not None and old.count == 1:
        return legacy.Choice(old.kind, settings.CPU_NUM_DEVICES, old.source)
    return old


def likely_kind() -> str:
    """``TPU``, ``CUDA`` or ``CPU``: what jax finds when nobody asks, by what is plugged in and what is installed."""
    if tpu_chips()[0] and importlib.util.find_spec("libtpu"):
        return "TPU"
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if hardware_utils.has_visible_nvidia_gpu() and any(map(importlib.util.find_spec, plugins)):
        return "CUDA"
    return "CPU"


def tpu_chips() -> tuple[int, str]:
    """How many TPU chips are plugged into this machine, and their generation, such as ``v4``; ``""`` without any."""
    chips, version = hardware_utils.num_available_tpu_chips_and_device_id()
    return chips, "" if version is None else version.name


def tpu_devices() -> int:
    """How many devices jax makes of this machine's TPU chips."""
    chips, version = tpu_chips()
    return chips * _DEVICES_PER_CHIP.get(version, 1)
