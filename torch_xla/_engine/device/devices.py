"""Map xla ordinals to jax devices. The first use of a device starts the backend; importing does not."""

from __future__ import annotations

import functools
import gc
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

#: PJRT_DEVICE value -> jax platform.
_PLATFORMS = {"CPU": "cpu", "TPU": "tpu", "GPU": "cuda", "CUDA": "cuda", "ROCM": "rocm"}

#: What to do if jax has no backend for a platform. The extras of jax work whether torch_xla is installed or a checkout.
_INSTALL = {
    "tpu": "Run on a TPU host, with libtpu (`pip install 'jax[tpu]'`), or set PJRT_DEVICE=CPU.",
    "cuda": "Run on an NVIDIA GPU host, with jax's plugin (`pip install 'jax[cuda12]'`), or set PJRT_DEVICE=CPU.",
    "rocm": "Run on an AMD GPU host, with jax's plugin, or set PJRT_DEVICE=CPU.",
}

_KINDS = {"cpu": "CPU", "gpu": "CUDA", "tpu": "TPU"}

#: (platform, device name) of the target devices that this process's CPU devices emulate; None: no emulation.
_described: tuple[str, str] | None = None


def emulate_device(platform: str, title: str) -> None:
    """Record programs for target devices (torch_xla.aot), and report these as the devices of this process.

    Values are still computed on the CPU, whatever PJRT_DEVICE is.
    """
    global _described
    _described = platform, title


def is_emulated() -> bool:
    """Whether the devices are emulated."""
    return _described is not None


def target_platform() -> str:
    """Return the platform that programs are recorded for: the emulated one, or the devices'. Starts the backend."""
    return platform() if _described is None else _described[0]


#: In a process forked after the first use of a device: objects that must not be destroyed, because XLA's destructors
#: wait for threads of the parent. Empty in every other process.
_left_behind: tuple[Any, ...] = ()

LOST = (
    "an xla device was used before this process was forked, and XLA does not survive a fork: use no xla device "
    'in the parent before forking, or start the process with start_method="spawn"'
)


@functools.cache
def devices() -> tuple[jax.Device, ...]:
    """Return the local devices by ordinal; in a multi-process job, the one device of this process.

    The first call starts the backend. Raises RuntimeError if PJRT_DEVICE names an unavailable platform, and in a
    process forked after the first use of a device.
    """
    xla_flags.read()  # once, as XLA does
    found = _initialize_devices()
    dtypes.defer_storage_dtypes(lambda: _storage_dtype_map(found[0].platform))
    for notify in _start_callbacks:
        notify(found[0])
    return found


_start_callbacks: list[Callable[[jax.Device], None]] = []


def on_backend_start(notify: Callable[[jax.Device], None]) -> None:
    """Call ``notify`` with the first device when the backend has started; it must not raise."""
    _start_callbacks.append(notify)


def missing_device_advice() -> str:
    """Return what to write instead of a device that this process does not have."""
    count = replicas.process_count()
    if count == 1:
        return "On CPU, set the environment variable CPU_NUM_DEVICES before the first use of a device to have more."
    return (
        f"It is rank {replicas.process_index()} of a job of {count} processes, and each process sees only its own "
        'device, as xla:0: write device="xla" in every process, without the local rank.'
    )


def _storage_dtype_map(platform: str) -> dict[torch.dtype, torch.dtype]:
    return dtypes.storage_dtype_map(
        platform,
        use_bf16=settings.XLA_USE_BF16 or settings.XLA_USE_F16,
        downcast_bf16=settings.XLA_DOWNCAST_BF16 or settings.XLA_DOWNCAST_FP16,
        use_32bit_long=settings.XLA_USE_32BIT_LONG,
    )


#: Variables that select storage dtypes. Libraries set them while a program runs.
_STORING = ("XLA_USE_BF16", "XLA_USE_F16", "XLA_DOWNCAST_BF16", "XLA_DOWNCAST_FP16", "XLA_USE_32BIT_LONG")


def warn_late_dtype_settings() -> None:
    """Warn, once for each, of a variable that selects storage dtypes and was set after the first value was stored."""
    late = (
        [name for name in settings.enabled_after_read(_STORING) if name not in _warned]
        if dtypes.storage_dtypes_decided()
        else ()
    )
    for name in late:
        _warned.add(name)
        warnings.warn(
            f"torch_xla: {name} was set after the first value had been stored on a device and has no effect: storage "
            "dtypes are decided once per process. Set it before the first tensor is on xla.",
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
    """Configure the number of jax's CPU devices before its backend starts, for code that uses only jax.

    Raises RuntimeError if the backend has started with another number of CPU devices.
    """
    request, count = None if _described else hardware_detection.requested_device(), _count_own_cpu_devices()
    if count > 1 and (request is None or request.kind == "CPU"):
        _ask_for_cpu_devices(count)


def _count_own_cpu_devices() -> int:
    """Return the number of CPU devices of this process: one per process in a job of replicas."""
    alone = replicas.process_count() == 1 or replicas.is_spmd()
    return hardware_detection.cpu_count() if alone else 1


def _local_devices() -> tuple[jax.Device, ...]:
    distributed.omit_fork_warning()  # a forked process raises LOST when it uses a device
    configure_cpu_devices()
    cpu_threads.leave_inherited_team()  # the interpreter and fallbacks run ATen's loops in the calling thread
    request = None if _described else hardware_detection.requested_device()
    _restrict_platforms(request)
    count = _count_own_cpu_devices()
    if request is None:
        with cpu_threads.limit_client_threads(count):
            return tuple(jax.local_devices(backend="cpu" if _described else None))
    platform = _PLATFORMS.get(request.kind, request.kind.lower())
    plugin = None if request.kind in _PLATFORMS else pjrt_plugins.find_plugin(request.kind)
    if plugin is not None:
        pjrt_plugins.register_with_jax(request.kind, plugin)
    try:
        with cpu_threads.limit_client_threads(count):
            return tuple(jax.local_devices(backend=platform))
    except RuntimeError as error:
        raise RuntimeError(
            f"{request.source} requests {request.kind}, but jax has no {platform} backend ({error}). "
            + (
                _INSTALL.get(platform, _list_plugins())
                if plugin is None
                else f"Its plugin is {plugin.library_path()}, of {type(plugin).__name__}."
            )
        ) from error


def _list_plugins() -> str:
    found = ", ".join(pjrt_plugins.jax_plugins()) or "none"
    return f"Device types: CPU, CUDA, TPU, and those of installed PJRT plugins. Plugins that jax finds: {found}."


def _restrict_platforms(request: xrt_config.DeviceRequest | None) -> None:
    """Restrict the platforms that jax starts to those that may be used.

    JAX_PLATFORMS is set                          unchanged
    PJRT_DEVICE=CPU; emulated devices             CPU only: allocates no GPU memory, locks no TPU
    no device requested, and there is no GPU      suppress the message of jax's CUDA plugin about a missing driver
    no TPU requested, and there is no TPU         all but TPU: libtpu, if installed, would print errors
    else                                          all
    """
    if jax.config.values["jax_platforms"]:
        return
    if _described or (request is not None and request.kind == "CPU"):
        jax.config.update("jax_platforms", "cpu")
        return
    if request is None and not hardware_detection.gpu_count():
        distributed.silence_missing_cuda_driver()
    if (request is None or request.kind != "TPU") and not hardware_detection.may_have_tpu():
        distributed.skip_tpu_backend()


def _ask_for_cpu_devices(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise RuntimeError(
            f"{count} CPU devices: jax has already started its backend with another number of CPU devices; use an "
            "xla device before any code that starts jax's backend"
        ) from error


def check_not_forked() -> None:
    """Raise RuntimeError in a process forked after the first use of a device."""
    if _left_behind:
        raise RuntimeError(LOST)


def inherited_objects() -> tuple[Any, ...]:
    """Return the parent's objects that must never be freed in a process forked after the first use of a device."""
    return _left_behind


def replica_devices() -> tuple[jax.Device, ...]:
    """Return the devices of all replicas of the job, by global ordinal."""
    if replicas.process_count() > 1:
        first: dict[int, jax.Device] = {}
        for candidate in jax.devices(devices()[0].platform):
            first.setdefault(candidate.process_index, candidate)
        return tuple(first[process] for process in sorted(first))
    return tuple(device(ordinal) for ordinal in replicas.local_devices() or (0,))


def count() -> int:
    """Return the number of xla devices: the local ones, or with SPMD the one that represents all."""
    return 1 if replicas.is_spmd() else len(devices())


def device(ordinal: int) -> jax.Device:
    """Return the jax device of ``xla:<ordinal>``. Raises IndexError if there is none."""
    if ordinal < 0:
        raise IndexError(f"xla:{ordinal}: device ordinals start at 0")
    return devices()[ordinal]


def hardware_name(ordinal: int) -> str:
    """Return the hardware device of ``xla:<ordinal>``, such as ``CPU:0`` or ``TPU:3``."""
    platform = device(ordinal).platform if _described is None else _described[0]
    return f"{_KINDS.get(platform, platform.upper())}:{ordinal}"


def device_kind(ordinal: int) -> str:
    """Return the vendor's name of the device of ``xla:<ordinal>``."""
    return str(device(ordinal).device_kind) if _described is None else _described[1]


def ordinal(buffer: jax.Array) -> int:
    """Return the xla ordinal of the device that a buffer is on."""
    if replicas.is_spmd():
        return 0
    return devices().index(next(iter(buffer.sharding.addressable_devices)))


def backend_started() -> bool:
    """Whether a device has been used."""
    return devices.cache_info().currsize > 0


def platform() -> str:
    """Return ``cpu``, ``gpu`` or ``tpu``. Starts the backend."""
    return str(devices()[0].platform)


def lowering_platform(device: jax.Device) -> str:
    """Return the platform of a device as jax's lowering rules name it: ``cuda`` or ``rocm`` where ``gpu`` is both."""
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def device_type() -> str:
    """Return ``CPU``, ``CUDA``, ``TPU``, or another type from PJRT_DEVICE. Does not start the backend.

    Before the backend has started, and if no type is requested, it is the one that jax will find. Raises as
    hardware_detection.requested_device.
    """
    request = hardware_detection.requested_device()
    if _described is not None:
        return _KINDS[_described[0]]
    if request is not None:
        return request.kind
    return _KINDS.get(platform(), platform().upper()) if backend_started() else hardware_detection.detect_device_type()


def _after_fork() -> None:
    global _left_behind
    if backend_started():
        _isolate_garbage_collection()
        # Devices own their client. Modules own executables, and thread pools (jax's mlir) that interpreter shutdown
        # would join.
        ours = ("jax", "jaxlib", "torch_xla")
        modules = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in ours]
        _left_behind = (devices(), [list(vars(m).values()) for m in modules])
        devices.cache_clear()


def _isolate_garbage_collection() -> None:
    """Let no garbage collection of a forked child call XLA, for the parent's objects or through jax's callback.

    jax's callback takes a lock, which a thread of XLA may have held at the fork: the child would wait forever.
    """
    gc.freeze()
    gc.callbacks[:] = [c for c in gc.callbacks if not str(getattr(c, "__module__", "")).startswith("jax.")]


os.register_at_fork(after_in_child=_after_fork)
