"""Device queries that Lightning makes before it uses xla devices. They start no backend: Lightning forks afterwards."""

from __future__ import annotations

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices, hardware_detection


def num_available_chips() -> int:
    """Return the number of TPU chips of this host. Raises OSError if it cannot be read."""
    return hardware_detection.tpu_count()


def num_available_devices() -> int:
    """Return the number of devices that ``accelerator="tpu"`` can use on this host.

    With PJRT_DEVICE=CPU, return CPU_NUM_DEVICES (default 1), so that such a program runs without a TPU. Without that
    setting CPU devices do not count, since a program must not move to XLA's CPU backend unasked.

    Raises:
      ValueError, OSError: the configuration or the devices cannot be read. Lightning handles only these.
    """
    try:
        wanted = hardware_detection.requested_device()
    except RuntimeError as error:  # legacy variables (XRT_TPU_CONFIG) name another host
        raise ValueError(str(error)) from error
    if wanted is not None and wanted.kind == "CPU":
        return wanted.count
    return hardware_detection.tpu_count() if wanted is None or wanted.kind == "TPU" else 0


def get_tpu_env() -> dict[str, str]:
    """Return the accelerator environment: ``ACCELERATOR_TYPE``, such as ``v4-8``. Starts no backend.

    The value is TPU_ACCELERATOR_TYPE, or else the device type and count (``CPU-4``), for which Lightning's
    ThroughputMonitor has no peak FLOP rate.
    """
    kind = settings.TPU_ACCELERATOR_TYPE
    return {"ACCELERATOR_TYPE": kind or f"{devices.device_type()}-{num_available_devices() or 1}"}
