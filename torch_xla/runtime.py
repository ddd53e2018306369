"""``xr``: which devices and processes take part in a job, and which one this is.

An ordinal counts replicas: devices that train together, one for each process or thread. A process that was started
by itself is a job of one: world size 1, ordinal 0. Unless it says so, a function here starts no backend, so that a
process can still fork afterwards.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.compilation.persistent_cache.cache import initialize as initialize_cache  # noqa: F401
from torch_xla._engine.device import devices, pjrt_plugins
from torch_xla._engine.job import replicas


def device_type() -> str:
    """The kind of device: ``CPU``, ``TPU``, ``CUDA``, or what PJRT_DEVICE names.

    Where nobody has asked for a kind and no device was used yet, the kind that will be found when one is.
    """
    return devices.device_type()


def set_device_type(pjrt_device: str) -> None:
    """Chooses the kind of device, ``CPU``, ``TPU`` or ``CUDA``, for this process and those it starts.

    Sets PJRT_DEVICE. Raises RuntimeError when a device of another kind is in use already.
    """
    if devices.backend_started() and pjrt_device.upper() != device_type():
        raise RuntimeError(
            f"set_device_type: devices of kind {device_type()} are in use already; choose {pjrt_device.upper()} before "
            "the first xla tensor is made"
        )
    settings.export("PJRT_DEVICE", pjrt_device)


def using_pjrt() -> bool:
    """Whether devices are driven through PJRT, XLA's runtime interface. They always are."""
    return True


def is_bf16_supported() -> bool:
    """Whether ``torch.bfloat16`` exists on xla devices."""
    return dtypes.is_supported(torch.bfloat16)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """An xla device; see torch_xla.core.xla_model.xla_device. Starts the backend."""
    from torch_xla.core import xla_model

    return xla_model.xla_device(n, devkind)


def world_size() -> int:
    """The number of replicas in the job, on all machines."""
    return replicas.world_size()


def global_ordinal() -> int:
    """This replica's number among all of the job, from 0."""
    return replicas.global_ordinal()


def local_ordinal() -> int:
    """This replica's number among those on this machine, from 0."""
    return replicas.local_ordinal()


def process_count() -> int:
    """The number of processes in the job."""
    return replicas.process_count()


def process_index() -> int:
    """This process's number among those of the job, from 0."""
    return replicas.process_index()


def local_process_count() -> int:
    """The number of the job's processes on this machine."""
    return replicas.local_process_count()


def host_index() -> int:
    """This machine's number among those of the job, from 0, where every machine has as many processes."""
    plugin = pjrt_plugins.registered_plugin(devices.device_type())
    if plugin is not None:
        return plugin.host_index()
    return replicas.process_index() // replicas.local_process_count()


def addressable_device_count() -> int:
    """The number of xla devices of this process; starts the backend."""
    return devices.count()


def local_device_count() -> int:
    """The number of xla devices of all the job's processes on this machine; starts the backend."""
    return addressable_device_count() * local_process_count()


def global_device_count() -> int:
    """The number of xla devices of all processes of the job; starts the backend."""
    return len(_all_devices())


def addressable_runtime_device_count() -> int:
    """The number of devices that XLA's runtime gives this process; starts the backend."""
    return len(devices.devices())


def global_runtime_device_count() -> int:
    """The number of devices that XLA's runtime knows, in all processes; starts the backend."""
    return len(_all_devices())


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What XLA's runtime says of one device, ``"xla:0"``, such as its kind and its place in a TPU's grid.

    Starts the backend. RuntimeError for a device that does not exist.
    """
    place = torch.device(device)
    ordinal = place.index or 0
    if place.type != "xla" or ordinal >= len(devices.devices()):
        raise RuntimeError(f"runtime_device_attributes: {device} is not one of {len(devices.devices())} xla devices")
    return _attributes(devices.device(ordinal))


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What XLA's runtime says of each device of all processes; starts the backend."""
    return [_attributes(device) for device in _all_devices()]


def get_master_ip() -> str:
    """The address of the machine of process 0, where the processes of a job meet."""
    return socket.gethostbyname(settings.MASTER_ADDR or "localhost")


def get_num_cached_compilation_graph() -> int:
    """How many compiled programs are kept in memory."""
    return len(program_cache.cache)


def is_spmd() -> bool:
    """Whether ``xla:0`` stands for all devices, over which tensors are spread; see use_spmd."""
    return replicas.is_spmd()


def use_spmd(auto: bool | None = False) -> None:
    """From now on one device, ``xla:0``, stands for all devices of the job, and a tensor can be spread over them.

    A tensor is there on every device until torch_xla.distributed.spmd.mark_sharding says otherwise; XLA splits the work
    and exchanges what is needed. Call it before the first tensor; xla tensors that exist already are replicated when
    they are next used. With several processes each runs the same script on the same values.

    Args:
      auto: must be false: choosing the shardings is XLA's work only for tensors that nobody marks.

    Raises NotImplementedError for ``auto``, RuntimeError where tensors live on devices other than ``xla:0``.
    """
    if auto:
        raise NotImplementedError("use_spmd(auto=True): mark the inputs and parameters, XLA chooses the rest")
    live = (
        [n for n in range(1, devices.count()) if recorder.bindings().live_tensor_count(n)]
        if devices.backend_started()
        else []
    )
    if live:
        raise RuntimeError(f"use_spmd: tensors live on xla:{live[0]}; there is only xla:0 with SPMD, so call it first")
    replicas.use_spmd()
    os.environ["XLA_USE_SPMD"] = "1"  # scripts look there for how they run; nothing here reads it


def _all_devices() -> list[jax.Device]:
    # Those of the platform in use, which need not be jax's default one.
    found: list[jax.Device] = jax.devices(devices.platform())
    return found


#: Attributes of a jax.Device; the last three exist on TPUs only.
_ATTRIBUTES = ("id", "process_index", "platform", "device_kind", "coords", "core_on_chip", "slice_index")


def _attributes(device: jax.Device) -> dict[str, Any]:
    return {name: value for name in _ATTRIBUTES if (value := getattr(device, name, None)) is not None}
