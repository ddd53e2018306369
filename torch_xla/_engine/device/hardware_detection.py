"""Detect this machine's devices without starting a backend: launchers fork or spawn afterwards."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import pjrt_plugins, xrt_config

_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
_TPU_PORT = 8476


def requested_device() -> xrt_config.DeviceRequest | None:
    """Return the device type requested by PJRT_DEVICE or the legacy XRT configuration; None if there is no request.

    Raises what xrt_config.parse_xrt_config raises.
    """
    if settings.PJRT_DEVICE:
        return xrt_config.DeviceRequest(settings.PJRT_DEVICE, settings.CPU_NUM_DEVICES, "PJRT_DEVICE")
    old = xrt_config.parse_xrt_config()
    if old is not None and old.count == 1:
        return xrt_config.DeviceRequest(old.kind, settings.CPU_NUM_DEVICES, old.source)
    return old


def detect_device_type() -> str:
    """Return the device type that a process will use: ``CPU``, ``CUDA``, ``TPU`` or the value of PJRT_DEVICE."""
    request = requested_device()
    if request is not None:
        return "CUDA" if request.kind == "GPU" else request.kind
    if tpu_count() and importlib.util.find_spec("libtpu"):
        return "TPU"
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if gpu_count() and any(importlib.util.find_spec(plugin) for plugin in plugins):
        return "CUDA"
    return "CPU"


def cpu_count() -> int:
    """Return the number of xla devices to create from this machine's CPU."""
    request = requested_device()
    return request.count if request else settings.CPU_NUM_DEVICES


def max_local_processes() -> int:
    """Return the number of devices of that type for processes with one device each; at least 1."""
    plugin = pjrt_plugins.registered_plugin(detect_device_type())
    if plugin is not None:
        return max(1, plugin.physical_chip_count())
    found = {"CPU": cpu_count, "CUDA": gpu_count, "TPU": tpu_count}.get(detect_device_type(), lambda: 1)
    return max(1, found())


def gpu_count() -> int:
    """Return the number of usable NVIDIA GPUs: the machine's, or those in CUDA_VISIBLE_DEVICES."""
    visible = settings.CUDA_VISIBLE_DEVICES
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([entry for entry in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", entry.name)])


def tpu_count() -> int:
    """Return the number of usable TPU chips."""
    chips = [entry for entry in Path("/dev").glob("accel*") if re.fullmatch(r"accel\d+", entry.name)]
    return len(chips) or len([entry for entry in Path("/dev/vfio").glob("*") if entry.name.isdigit()])


def may_have_tpu() -> bool:
    """Whether this machine has TPU chips, or the environment is that of a TPU machine, whose chips may be remote."""
    return tpu_count() > 0 or any(name in os.environ for name in ("TPU_ACCELERATOR_TYPE", "JAX_FORCE_TPU_INIT"))


def process_env(index: int, processes: int) -> dict[str, str]:
    """Return the environment variables that give a process exclusive use of the device of that index.

    For TPUs these are libtpu's topology variables for the chips of one machine. They follow libtpu's documentation and
    have not been run on a TPU. Raises ValueError for a number of chips without a known topology.
    """
    if detect_device_type() != "TPU" or processes == 1:
        return {}
    if processes not in _TPU_BOUNDS:
        raise ValueError(
            f"spawn: no known topology for {processes} TPU chips in one machine; supported: {list(_TPU_BOUNDS)}"
        )
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": _TPU_BOUNDS[processes],
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{_TPU_PORT + i}" for i in range(processes)),
        "TPU_PROCESS_PORT": str(_TPU_PORT + index),
        "TPU_VISIBLE_CHIPS": str(index),
        "CLOUD_TPU_TASK_ID": str(index),
    }
