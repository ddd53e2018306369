"""Check whether torch_xla can use a TPU or a GPU of this host, and find out why not."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import hardware_detection
from torch_xla.doctor.report import DoctorReport

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def check_accelerators(report: DoctorReport) -> None:
    """Report TPUs and GPUs, with a finding if one is requested, or is present but unusable."""
    try:
        wanted = hardware_detection.requested_device()
        hidden = settings.CUDA_VISIBLE_DEVICES == ""
    except (ValueError, RuntimeError) as error:  # an invalid configuration, or one of a legacy XRT server
        report.add_finding(str(error))
        return
    asked = None if wanted is None else {"GPU": "CUDA"}.get(wanted.kind, wanted.kind)
    source = "" if wanted is None else wanted.source
    for title, kind, (state, cure) in (("TPU", "TPU", _tpu()), ("GPU", "CUDA", _gpu(hidden))):
        other = f"; {source} requests {asked}" if asked and asked != kind else ""
        report.add_line(title, state + other)
        if cure and asked == kind:
            report.add_finding(
                f"{source} requests a {title}: {state.removeprefix('none: ')}.", f"{cure}; or set PJRT_DEVICE=CPU"
            )
        elif cure and asked is None and not state.startswith("none"):
            report.add_finding(f"{title}: {state}.", cure)


def _tpu() -> tuple[str, str]:
    """Return the state of TPUs on this host, and a remedy if they cannot be used."""
    count, library = hardware_detection.tpu_count(), importlib.util.find_spec("libtpu") is not None
    if not count:
        install = "" if library else ", and libtpu is not installed"
        return (
            f"none: no TPU chip found (/dev/accel0, /dev/vfio/0){install}",
            "Run on a TPU VM (scripts/setup_tpu_vm.sh creates one), with libtpu: pip install 'jax[tpu]'",
        )
    if not library:
        return f"{count} chips, but libtpu is not installed", 'pip install "jax[tpu]"'
    closed = _first_inaccessible([*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")])
    if closed:
        return f"{count} chips, but this user cannot open {closed}", f"sudo chmod a+rw {closed}"
    return f"{count} chips, libtpu is installed", ""


def _gpu(hidden: bool) -> tuple[str, str]:
    """Return the state of GPUs on this host, and a remedy. ``hidden``: CUDA_VISIBLE_DEVICES is empty."""
    there = sorted(Path("/dev").glob("nvidia[0-9]*"))
    plugin = any(importlib.util.find_spec(name) for name in _PLUGINS)
    install = "" if plugin else ", and jax's CUDA plugin is not installed"
    if not there:
        return (
            f"none: no NVIDIA GPU found (/dev/nvidia0){install}",
            "Install the driver (check it with nvidia-smi), and jax's plugin: pip install 'jax[cuda12]'",
        )
    if hidden:
        return f"none: CUDA_VISIBLE_DEVICES hides all {len(there)}", "unset CUDA_VISIBLE_DEVICES"
    if not plugin:
        return f"{len(there)} NVIDIA GPUs, but jax's CUDA plugin is not installed", 'pip install "jax[cuda12]"'
    closed = _first_inaccessible(there)
    if closed:
        return f"{len(there)} NVIDIA GPUs, but this user cannot open {closed}", f"sudo chmod a+rw {closed}"
    return f"{len(there)} NVIDIA GPUs, jax's CUDA plugin is installed", ""


def _first_inaccessible(devices: list[Path]) -> Path | None:
    return next((path for path in devices if not os.access(path, os.R_OK | os.W_OK)), None)
