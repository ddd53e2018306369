"""Which jax device an xla ordinal stands for. The first use of a device starts the backend; importing does not."""

from __future__ import annotations

import functools

import jax

from torch_xla._engine import hardware
from torch_xla._engine.settings import settings

#: PJRT_DEVICE values of torch_xla and the jax platform that each means.
_PLATFORMS = {"CPU": "cpu", "TPU": "tpu", "GPU": "cuda", "CUDA": "cuda", "ROCM": "rocm"}

_KINDS = {"gpu": "CUDA"}


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """The local devices, by ordinal. Raises RuntimeError where PJRT_DEVICE names a platform that is not there."""
    wanted = hardware.requested()
    count = wanted.count if wanted else settings.CPU_NUM_DEVICES
    if count > 1 and (wanted is None or wanted.kind == "CPU"):
        _ask_for_cpu_devices(count)
    if wanted is None:
        return tuple(jax.local_devices())
    platform = _PLATFORMS.get(wanted.kind, wanted.kind.lower())
    try:
        return tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        raise RuntimeError(
            f"{wanted.source} asks for {wanted.kind}: jax has no {platform} backend here ({error}). Install "
            "torch_xla[tpu] or torch_xla[cuda], or set PJRT_DEVICE=CPU."
        ) from error


def _ask_for_cpu_devices(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise RuntimeError(
            f"{count} CPU devices: jax has started its backend with another number of CPU devices already; use an "
            "xla device before anything that starts jax's backend"
        ) from error


def device(ordinal: int) -> jax.Device:
    """The jax device behind ``xla:<ordinal>``. Raises IndexError if there is none."""
    return devices()[ordinal]


def started() -> bool:
    """Whether a device has been used."""
    return devices.cache_info().currsize > 0


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``; starts the backend."""
    return str(devices()[0].platform)


def kind() -> str:
    """``CPU``, ``CUDA``, ``TPU``, or another kind that PJRT_DEVICE names; starts nothing. Raises as hardware.requested.

    Before the backend has started, and where nobody has asked for a kind, it is the one that jax is going to find.
    """
    wanted = hardware.requested()
    if wanted is not None:
        return wanted.kind
    return _KINDS.get(platform(), platform().upper()) if started() else hardware.likely_kind()
