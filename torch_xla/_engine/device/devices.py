"""Which jax device an xla ordinal stands for. The first use of a device starts the backend; importing does not."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch

from torch_xla._engine.base import dtypes, xla_flags
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat import distributed
from torch_xla._engine.device import cpu_threads, hardware_detection, pjrt_plugins, xrt_config
from torch_xla._engine.job import coordination, replicas

#: PJRT_DEVICE values of torch_xla and the jax platform that each means.
_PLATFORMS = {"CPU": "cpu", "TPU": "tpu", "GPU": "cuda", "CUDA": "cuda", "ROCM": "rocm"}

_KINDS = {"cpu": "CPU", "gpu": "CUDA", "tpu": "TPU"}

#: (platform, name of a device) of the devices that those of this process, the CPU's, stand for; None: they are what
#: they are.
_described: tuple[str, str] | None = None


def emulate_device(platform: str, title: str) -> None:
    """From now on programs here are recorded for other devices (torch_xla.aot), and are told that they have these.

    Values are computed on the CPU all the same, whatever PJRT_DEVICE says.
    """
    global _described
    _described = platform, title


def is_emulated() -> bool:
    """Whether the devices stand for others."""
    return _described is not None


def target_platform() -> str:
    """The platform that programs are recorded for: the devices', or that of what they stand for. Starts the backend."""
    return platform() if _described is None else _described[0]


#: In a process forked from one that had used a device: what must not be destroyed there, as XLA's destructors wait for
#: threads that stayed behind. Empty in every other process.
_left_behind: tuple[Any, ...] = ()

LOST = (
    "an xla device was used before this process was forked, and XLA does not survive a fork: use no xla device "
    'in the parent before forking, or start the process with start_method="spawn"'
)


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """The local devices, by ordinal: in a job of several processes this process's one.

    The first call starts the backend. Raises RuntimeError where PJRT_DEVICE names a platform that is not there, and in
    a process forked from one that had used a device.
    """
    xla_flags.read()  # as XLA does, once
    found = _initialize_devices()
    dtypes.defer_storage_dtypes(lambda: _storage_dtype_map(found[0].platform))
    for tell in _told_of_start:
        tell(found[0])
    return found


_told_of_start: list[Callable[[jax.Device], None]] = []


def on_backend_start(tell: Callable[[jax.Device], None]) -> None:
    """Has ``tell`` called with the first device when the backend has started; it must not raise."""
    _told_of_start.append(tell)


def _storage_dtype_map(platform: str) -> dict[torch.dtype, torch.dtype]:
    return dtypes.storage_dtype_map(
        platform,
        use_bf16=settings.XLA_USE_BF16 or settings.XLA_USE_F16,
        downcast_bf16=settings.XLA_DOWNCAST_BF16 or settings.XLA_DOWNCAST_FP16,
        use_32bit_long=settings.XLA_USE_32BIT_LONG,
    )


#: Variables that say how values are stored. Libraries set them while a program runs.
_STORING = ("XLA_USE_BF16", "XLA_USE_F16", "XLA_DOWNCAST_BF16", "XLA_DOWNCAST_FP16", "XLA_USE_32BIT_LONG")


def warn_late_dtype_settings() -> None:
    """Warns, once for each, of a variable that says how values are stored and was set after the first one was."""
    late = (
        [name for name in settings.enabled_after_read(_STORING) if name not in _warned]
        if dtypes.storage_dtypes_decided()
        else ()
    )
    for name in late:
        _warned.add(name)
        warnings.warn(
            f"torch_xla: {name} was set after the first value had been stored on a device, and changes nothing: how "
            "values are stored is one decision for the whole process. Set it before anything is on xla.",
            UserWarning,
            stacklevel=2,
        )


_warned: set[str] = set()


def _initialize_devices() -> tuple[jax.Device, ...]:
    check_not_forked()
    if replicas.process_count() > 1:
        coordination.initialize()
        return (_local_devices()[0],)
    return _local_devices()


def configure_cpu_devices() -> None:
    """Asks jax for the CPU devices that will be wanted, before its backend starts: for what uses jax alone.

    Raises RuntimeError where the backend has started with another number of them.
    """
    wanted, count = None if _described else hardware_detection.requested_device(), _count_own_cpu_devices()
    if count > 1 and (wanted is None or wanted.kind == "CPU"):
        _ask_for_cpu_devices(count)


def _count_own_cpu_devices() -> int:
    """Return how many CPU devices this process has: one for each process of a job of replicas."""
    alone = replicas.process_count() == 1 or replicas.is_spmd()
    return hardware_detection.cpu_count() if alone else 1


def _local_devices() -> tuple[jax.Device, ...]:
    configure_cpu_devices()
    wanted = None if _described else hardware_detection.requested_device()
    _restrict_platforms(wanted)
    count = _count_own_cpu_devices()
    if wanted is None:
        with cpu_threads.reserve_threads(count):
            return tuple(jax.local_devices(backend="cpu" if _described else None))
    platform = _PLATFORMS.get(wanted.kind, wanted.kind.lower())
    plugin = None if wanted.kind in _PLATFORMS else pjrt_plugins.find_plugin(wanted.kind)
    if plugin is not None:
        pjrt_plugins.register_with_jax(wanted.kind, plugin)
    try:
        with cpu_threads.reserve_threads(count):
            return tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        raise RuntimeError(
            f"{wanted.source} asks for {wanted.kind}: jax has no {platform} backend here ({error}). "
            + (
                "Install torch_xla[tpu] or torch_xla[cuda], or set PJRT_DEVICE=CPU."
                if plugin is None
                else f"Its plugin is {plugin.library_path()}, of {type(plugin).__name__}."
            )
        ) from error


def _restrict_platforms(wanted: xrt_config.DeviceRequest | None) -> None:
    """Has jax start, of the platforms that it finds plugins for, what may be wanted.

    JAX_PLATFORMS is set                             what it says
    PJRT_DEVICE=CPU; the devices stand for others    the CPU alone: no memory of a GPU is taken, no TPU is locked
    nothing is asked for, and there is no GPU        all; jax's CUDA plugin does not write that it finds no driver
    else                                             all
    """
    if jax.config.values["jax_platforms"]:
        return
    if _described or (wanted is not None and wanted.kind == "CPU"):
        jax.config.update("jax_platforms", "cpu")
    elif wanted is None and not hardware_detection.gpu_count():
        distributed.silence_missing_cuda_driver()


def _ask_for_cpu_devices(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise RuntimeError(
            f"{count} CPU devices: jax has started its backend with another number of CPU devices already; use an "
            "xla device before anything that starts jax's backend"
        ) from error


def check_not_forked() -> None:
    """Raises RuntimeError in a process forked from one that had used a device."""
    if _left_behind:
        raise RuntimeError(LOST)


def inherited_objects() -> tuple[Any, ...]:
    """What of the parent must never be freed, in a process forked from one that had used a device; else nothing."""
    return _left_behind


def replica_devices() -> tuple[jax.Device, ...]:
    """The devices of all replicas of the job, by global ordinal."""
    if replicas.process_count() > 1:
        first: dict[int, jax.Device] = {}
        for candidate in jax.devices(devices()[0].platform):
            first.setdefault(candidate.process_index, candidate)
        return tuple(first[process] for process in sorted(first))
    return tuple(device(ordinal) for ordinal in replicas.local_devices() or (0,))


def count() -> int:
    """The number of xla devices: the local ones, or with SPMD the one that stands for all."""
    return 1 if replicas.is_spmd() else len(devices())


def device(ordinal: int) -> jax.Device:
    """The jax device behind ``xla:<ordinal>``. Raises IndexError if there is none."""
    if ordinal < 0:
        raise IndexError(f"xla:{ordinal}: ordinals count from 0")
    return devices()[ordinal]


def hardware_name(ordinal: int) -> str:
    """What is behind ``xla:<ordinal>``, such as ``CPU:0`` or ``TPU:3``."""
    platform = device(ordinal).platform if _described is None else _described[0]
    return f"{_KINDS.get(platform, platform.upper())}:{ordinal}"


def device_kind(ordinal: int) -> str:
    """The vendor's name of what is behind ``xla:<ordinal>``."""
    return str(device(ordinal).device_kind) if _described is None else _described[1]


def ordinal(buffer: jax.Array) -> int:
    """The xla ordinal of the device that a buffer is on."""
    if replicas.is_spmd():
        return 0
    return devices().index(next(iter(buffer.sharding.addressable_devices)))


def backend_started() -> bool:
    """Whether a device has been used."""
    return devices.cache_info().currsize > 0


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``; starts the backend."""
    return str(devices()[0].platform)


def device_type() -> str:
    """``CPU``, ``CUDA``, ``TPU``, or another kind that PJRT_DEVICE names; starts nothing. Raises as hardware.requested.

    Before the backend has started, and where nobody has asked for a kind, it is the one that jax is going to find.
    """
    wanted = hardware_detection.requested_device()
    if _described is not None:
        return _KINDS[_described[0]]
    if wanted is not None:
        return wanted.kind
    return _KINDS.get(platform(), platform().upper()) if backend_started() else hardware_detection.detect_device_type()


def _after_fork() -> None:
    global _left_behind
    if backend_started():
        # Devices own their client. Modules own executables, and thread pools (jax's mlir), which the end of the
        # interpreter would join.
        ours = ("jax", "jaxlib", "torch_xla")
        modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in ours]
        _left_behind = (devices(), [list(vars(m).values()) for m in modules])
        devices.cache_clear()


os.register_at_fork(after_in_child=_after_fork)
