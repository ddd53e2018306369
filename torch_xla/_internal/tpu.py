"""What Lightning asks before it uses xla devices. Nothing here starts a backend: Lightning forks afterwards."""

from __future__ import annotations

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices, hardware_detection


def num_available_chips() -> int:
    """How many TPU chips this machine has. OSError where that cannot be read."""
    return hardware_detection.tpu_count()


def num_available_devices() -> int:
    """How many devices ``accelerator="tpu"`` can have on this machine.

    With PJRT_DEVICE=CPU, that many CPU devices as CPU_NUM_DEVICES says (default 1), so that such a program runs without
    a TPU. Only then: where nobody has asked for it, nobody's program should move to XLA on the CPU. Raises ValueError
    and OSError and nothing else, since Lightning expects nothing else.
    """
    try:
        wanted = hardware_detection.requested_device()
    except RuntimeError as error:  # XRT_TPU_CONFIG and its like name another machine
        raise ValueError(str(error)) from error
    if wanted is not None and wanted.kind == "CPU":
        return wanted.count
    return hardware_detection.tpu_count() if wanted is None or wanted.kind == "TPU" else 0


def get_tpu_env() -> dict[str, str]:
    """What the machine says of its accelerators: ``ACCELERATOR_TYPE``, such as ``v4-8``.

    TPU_ACCELERATOR_TYPE says it. Where that is not set it is the kind of device and how many there are (``CPU-4``), by
    which Lightning's ThroughputMonitor finds that it knows no peak rate of it. Starts no backend.
    """
    kind = settings.TPU_ACCELERATOR_TYPE
    return {"ACCELERATOR_TYPE": kind or f"{devices.device_type()}-{num_available_devices() or 1}"}
