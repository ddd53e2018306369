"""Whether this machine shows a TPU or a GPU to torch_xla, and if not, why."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import hardware_detection
from torch_xla.doctor.report import Report

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def check_accelerators(report: Report) -> None:
    """Adds a line for TPUs and one for GPUs, and a finding where one is asked for, or is there and cannot be used."""
    try:
        wanted = hardware_detection.requested_device()
        hidden = settings.CUDA_VISIBLE_DEVICES == ""
    except (ValueError, RuntimeError) as error:  # a configuration that cannot be read, or of servers of long ago
        report.add_finding(str(error))
        return
    asked = None if wanted is None else {"GPU": "CUDA"}.get(wanted.kind, wanted.kind)
    source = "" if wanted is None else wanted.source
    for title, kind, (state, cure) in (("TPU", "TPU", _tpu()), ("GPU", "CUDA", _gpu(hidden))):
        other = f"; {source} asks for {asked}" if asked and asked != kind else ""
        report.add_line(title, state + other)
        if cure and asked == kind:
            report.add_finding(
                f"{source} asks for a {title}: {state.removeprefix('none: ')}.", f"{cure}; or set PJRT_DEVICE=CPU"
            )
        elif cure and asked is None and not state.startswith("none"):
            report.add_finding(f"{title}: {state}.", cure)


def _tpu() -> tuple[str, str]:
    """What there is, and what to do where it cannot be used."""
    count, library = hardware_detection.tpu_count(), importlib.util.find_spec("libtpu") is not None
    if not count:
        install = "" if library else ", and libtpu is not installed"
        return (
            f"none: this machine shows no TPU chip (/dev/accel0, /dev/vfio/0){install}",
            "Run on a TPU VM (scripts/setup_tpu_vm.sh makes one), with torch_xla[tpu]",
        )
    if not library:
        return f"{count} chips, but libtpu is not installed", 'pip install "torch_xla[tpu]"'
    closed = _first_inaccessible([*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")])
    if closed:
        return f"{count} chips, but {closed} cannot be opened by this user", f"sudo chmod a+rw {closed}"
    return f"{count} chips, libtpu is installed", ""


def _gpu(hidden: bool) -> tuple[str, str]:
    """What there is, and what to do where it cannot be used. ``hidden``: CUDA_VISIBLE_DEVICES is empty."""
    there = sorted(Path("/dev").glob("nvidia[0-9]*"))
    plugin = any(importlib.util.find_spec(name) for name in _PLUGINS)
    install = "" if plugin else ", and jax's CUDA plugin is not installed"
    if not there:
        return (
            f"none: this machine shows no NVIDIA GPU (/dev/nvidia0){install}",
            "Install the driver (nvidia-smi says whether it runs), and torch_xla[cuda]",
        )
    if hidden:
        return f"none: CUDA_VISIBLE_DEVICES hides all {len(there)}", "unset CUDA_VISIBLE_DEVICES"
    if not plugin:
        return f"{len(there)} of NVIDIA's, but jax's CUDA plugin is not installed", 'pip install "torch_xla[cuda]"'
    closed = _first_inaccessible(there)
    if closed:
        return f"{len(there)}, but {closed} cannot be opened by this user", f"sudo chmod a+rw {closed}"
    return f"{len(there)}, jax's CUDA plugin is installed", ""


def _first_inaccessible(devices: list[Path]) -> Path | None:
    return next((path for path in devices if not os.access(path, os.R_OK | os.W_OK)), None)
