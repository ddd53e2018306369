"""Which jax device an xla ordinal stands for. The first use of a device starts the backend; importing does not."""

from __future__ import annotations

import functools

import jax

from torch_xla._engine.settings import settings

#: PJRT_DEVICE values of torch_xla and the jax platform that each means.
_PLATFORMS = {"CPU": "cpu", "TPU": "tpu", "GPU": "cuda", "CUDA": "cuda", "ROCM": "rocm"}


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """The local devices, by ordinal. Raises RuntimeError where PJRT_DEVICE names a platform that is not there."""
    wanted = settings.PJRT_DEVICE
    count = settings.CPU_NUM_DEVICES
    if count > 1 and wanted in ("", "CPU"):
        _ask_for_cpu_devices(count)
    if not wanted:
        return tuple(jax.local_devices())
    platform = _PLATFORMS.get(wanted.upper(), wanted.lower())
    try:
        return tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        raise RuntimeError(
            f"PJRT_DEVICE={wanted}: jax has no {platform} backend here ({error}). Install torch_xla[tpu] or "
            "torch_xla[cuda], or set PJRT_DEVICE=CPU."
        ) from error


def _ask_for_cpu_devices(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise RuntimeError(
            f"CPU_NUM_DEVICES={count}: jax has started its backend with another number of CPU devices already; use an "
            "xla device before anything that starts jax's backend"
        ) from error


def device(ordinal: int) -> jax.Device:
    """The jax device behind ``xla:<ordinal>``. Raises IndexError if there is none."""
    return devices()[ordinal]


def ordinal(buffer: jax.Array) -> int:
    """The xla ordinal of the device that a buffer is on."""
    return devices().index(next(iter(buffer.devices())))


def started() -> bool:
    """Whether a device has been used."""
    return devices.cache_info().currsize > 0


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``; starts the backend."""
    return str(devices()[0].platform)
