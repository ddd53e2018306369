"""``xr``: devices, processes and replicas of a job, and this process's indices in it.

A replica is a device that trains together with others; each process or thread drives one, identified by its ordinal.
A process that was started alone is a job of one: world size 1, ordinal 0. Functions start no backend unless their
docstring says so, so that a process can still fork afterwards.
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
    """Return the device type: ``CPU``, ``TPU``, ``CUDA``, or the value of PJRT_DEVICE.

    If the device type is not configured and no device is in use, return the type that will be selected.

    Examples:
      >>> import torch_xla.runtime as xr
      >>> xr.device_type() in ("CPU", "CUDA", "TPU")
      True
    """
    return devices.device_type()


def set_device_type(pjrt_device: str) -> None:
    """Select the device type, ``CPU``, ``TPU`` or ``CUDA``, for this process and the processes it starts.

    Sets PJRT_DEVICE.

    Args:
      pjrt_device: ``CPU``, ``TPU``, ``CUDA``, or the name of a plugin's device type.

    Raises:
      RuntimeError: a device of another type is in use.
    """
    if devices.backend_started() and pjrt_device.upper() != device_type():
        raise RuntimeError(
            f"set_device_type: devices of type {device_type()} are in use; select {pjrt_device.upper()} before "
            "creating the first xla tensor"
        )
    settings.export("PJRT_DEVICE", pjrt_device)


def using_pjrt() -> bool:
    """Return True: all devices are driven through PJRT, XLA's runtime interface."""
    return True


def is_bf16_supported() -> bool:
    """Return whether xla devices support ``torch.bfloat16``."""
    return dtypes.is_supported(torch.bfloat16)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return an xla device; see [xm.xla_device][torch_xla.core.xla_model.xla_device]. Starts the backend.

    Args:
      n: device ordinal; default: the current device.
      devkind: required device type: ``CPU``, ``TPU`` or ``CUDA``.

    Raises:
      RuntimeError: no device of this type exists, or no device with this ordinal (then also an IndexError).
    """
    from torch_xla.core import xla_model

    return xla_model.xla_device(n, devkind)


def world_size() -> int:
    """Return the number of replicas of the job, on all hosts.

    Examples:
      A process that was started alone:

      >>> import torch_xla.runtime as xr
      >>> xr.world_size()
      1
    """
    return replicas.world_size()


def global_ordinal() -> int:
    """Return this replica's ordinal among all replicas of the job, from 0.

    Examples:
      >>> import torch_xla.runtime as xr
      >>> f"replica {xr.global_ordinal()} of {xr.world_size()}"
      'replica 0 of 1'
    """
    return replicas.global_ordinal()


def local_ordinal() -> int:
    """Return this replica's ordinal among the replicas of this host, from 0."""
    return replicas.local_ordinal()


def process_count() -> int:
    """Return the number of processes of the job."""
    return replicas.process_count()


def process_index() -> int:
    """Return this process's index in the job, from 0."""
    return replicas.process_index()


def local_process_count() -> int:
    """Return the number of the job's processes on this host."""
    return replicas.local_process_count()


def host_index() -> int:
    """Return this host's index in the job, from 0; all hosts must have the same number of processes."""
    plugin = pjrt_plugins.registered_plugin(devices.device_type())
    if plugin is not None:
        return plugin.host_index()
    return replicas.process_index() // replicas.local_process_count()


def addressable_device_count() -> int:
    """Return the number of xla devices of this process. Starts the backend."""
    return devices.count()


def local_device_count() -> int:
    """Return the number of xla devices of all the job's processes on this host. Starts the backend."""
    return addressable_device_count() * local_process_count()


def global_device_count() -> int:
    """Return the number of xla devices of all processes of the job. Starts the backend."""
    return len(_all_devices())


def addressable_runtime_device_count() -> int:
    """Return the number of devices that XLA's runtime provides to this process. Starts the backend."""
    return len(devices.devices())


def global_runtime_device_count() -> int:
    """Return the number of devices that XLA's runtime has in all processes. Starts the backend.

    Examples:
      With ``CPU_NUM_DEVICES=4``, in one process:

      >>> import torch_xla.runtime as xr
      >>> xr.global_runtime_device_count()
      4
    """
    return len(_all_devices())


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """Return the runtime's attributes of one device, such as its kind and its coordinates in a TPU topology.

    Starts the backend.

    Args:
      device: name of an xla device, such as ``"xla:0"``.

    Raises:
      RuntimeError: the device does not exist.
    """
    place = torch.device(device)
    ordinal = place.index or 0
    if place.type != "xla" or ordinal >= len(devices.devices()):
        raise RuntimeError(
            f"runtime_device_attributes: {device} does not exist; this process has {len(devices.devices())} xla "
            f"device(s). {devices.missing_device_advice()}"
        )
    return _attributes(devices.device(ordinal))


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """Return the runtime's attributes of each device of all processes. Starts the backend."""
    return [_attributes(device) for device in _all_devices()]


def get_master_ip() -> str:
    """Return the address of the host of process 0, which runs the job's coordinator."""
    return socket.gethostbyname(settings.MASTER_ADDR or "localhost")


def get_num_cached_compilation_graph() -> int:
    """Return the number of compiled programs in the in-memory cache."""
    return len(program_cache.cache)


def is_spmd() -> bool:
    """Return whether SPMD is enabled: ``xla:0`` is a virtual device over all devices of the job.

    See [use_spmd][torch_xla.runtime.use_spmd].

    Examples:
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> xr.is_spmd()
      True
    """
    return replicas.is_spmd()


def use_spmd(auto: bool | None = False) -> None:
    """Enable SPMD: ``xla:0`` becomes a virtual device over all devices of the job, on which tensors can be sharded.

    A tensor is replicated until [mark_sharding][torch_xla.distributed.spmd.mark_sharding] shards it; XLA partitions the
    computation and inserts the collectives. Call this function before the first tensor is created; existing xla tensors
    are replicated when they are next used. With several processes, each runs the same script on the same values.

    Args:
      auto: must be false. XLA chooses shardings only for unannotated tensors.

    Raises:
      NotImplementedError: ``auto`` is true.
      RuntimeError: tensors exist on devices other than ``xla:0``.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.get_1d_mesh("data")
      >>> x = xs.mark_sharding(torch.ones(8, 2, device="xla"), mesh, ("data", None))
      >>> [list(shard.data.shape) for shard in x.local_shards]
      [[2, 2], [2, 2], [2, 2], [2, 2]]
    """
    if auto:
        raise NotImplementedError("use_spmd(auto=True): mark the inputs and parameters; XLA shards the other tensors")
    live = (
        [n for n in range(1, devices.count()) if recorder.bindings().live_tensor_count(n)]
        if devices.backend_started()
        else []
    )
    if live:
        raise RuntimeError(
            f"use_spmd: tensors exist on xla:{live[0]}, but SPMD has only xla:0; call use_spmd before creating tensors"
        )
    replicas.use_spmd()
    os.environ["XLA_USE_SPMD"] = "1"  # scripts read it to detect SPMD; torch_xla does not


def _all_devices() -> list[jax.Device]:
    # The devices of the platform in use, which may differ from jax's default platform.
    found: list[jax.Device] = jax.devices(devices.platform())
    return found


#: Attributes of a jax.Device; only TPUs have the last three.
_ATTRIBUTES = ("id", "process_index", "platform", "device_kind", "coords", "core_on_chip", "slice_index")


def _attributes(device: jax.Device) -> dict[str, Any]:
    return {name: value for name in _ATTRIBUTES if (value := getattr(device, name, None)) is not None}
