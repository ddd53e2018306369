"""What the devices of this process can do, found by asking jax and the PJRT client, not by the platform's name.

The name does not decide: a plugin of any vendor may call its platform "cpu", and jax has only its default lowering
rules for a platform with another name. Each question is answered when it is first asked, once for each client.

    runs_in_process      the client is jaxlib's CPU client: it finds the custom calls of this process (LAPACK, kernels,
                         Python), uses its memory, and compiles independently of other processes
    shares_host_memory   an array on a device may be the memory of a numpy array
    donates_buffers      jax lets programs overwrite their inputs
    memory_kinds         the memories that values can be placed in
    can_decompose        the compiler has a matrix decomposition: otherwise the CPU runs the operators that need it
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.backend
import numpy as np
from jax.sharding import SingleDeviceSharding

from torch_xla._engine.device import abstract_device, devices
from torch_xla._engine.lowering import decompositions

_log = logging.getLogger(__name__)

#: Bytes of an array that jax shares rather than copies, if it can.
_SHARED = 1 << 16


def runs_in_process(device: jax.Device) -> bool:
    """Whether programs of the device run in this process and find its custom calls: jaxlib's own CPU client."""
    # The name alone does not decide. It comes first because devices that are compiled for (aot) have no backend.
    return device.platform == "cpu" and _is_jaxlib_cpu(device.client)


@functools.cache
def _is_jaxlib_cpu(client: Any) -> bool:
    return jax.extend.backend.backends().get("cpu") is client


def default_runs_in_process() -> bool:
    """Return runs_in_process() of this process's devices. Starts the backend."""
    return runs_in_process(devices.devices()[0])


@functools.cache
def shares_host_memory(device: jax.Device) -> bool:
    """Whether jax may use the memory of a host array for an array on the device instead of a copy."""
    return runs_in_process(device) or _shares_host_memory(device.client)


@functools.cache
def _shares_host_memory(client: Any) -> bool:
    device = client.local_devices()[0]
    host = np.zeros(_SHARED + 64, np.uint8)
    host = host[-host.ctypes.data % 64 :][:_SHARED]  # aligned, as XLA requires for sharing
    placed = jax.device_put(host, device)
    placed.block_until_ready()
    host[:] = 1
    return bool(np.asarray(placed)[0] == 1)


def donates_buffers(device: jax.Device) -> bool:
    """Whether jax lets a program on the device overwrite its inputs; if not, it warns of each donated input."""
    return runs_in_process(device) or _donates_buffers(device.client)


@functools.cache
def _donates_buffers(client: Any) -> bool:
    struct = _matrix(client.local_devices()[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = jax.jit(lambda x: x + 1, donate_argnums=0).lower(struct).as_text()
    return "tf.aliasing_output" in text or "jax.buffer_donor" in text


def memory_kinds(device: jax.Device) -> tuple[str, ...]:
    """Return the kinds of memory of a device, such as ``device`` and ``pinned_host``."""
    return tuple(memory.kind for memory in device.addressable_memories())


def supports_operator(name: str) -> bool:
    """Whether the devices can compile the matrix decompositions that an operator's rule uses.

    The recorder asks once for each operator of lowering/decompositions.py. Starts the backend.
    """
    if abstract_device.is_enabled() or devices.is_emulated():
        return True
    device = devices.devices()[0]
    return runs_in_process(device) or all(can_decompose(device.client, part) for part in decompositions.USED[name])


@functools.cache
def can_decompose(client: Any, part: str) -> bool:
    """Whether the compiler of a client has the matrix decomposition ``part``, a key of decompositions.PROBES."""
    probe: Callable[..., object] = decompositions.PROBES[part]
    try:
        lowered = jax.jit(probe).lower(_matrix(client.local_devices()[0]))
        if "lapack_" in lowered.as_text():  # jax's rules for its own CPU client, whose library another client lacks
            lowered.compile()
    except (NotImplementedError, jax.errors.JaxRuntimeError) as error:
        _log.info("platform %s: %s runs on the CPU: %s", client.platform, part, error)
        return False
    return True


def _matrix(device: jax.Device) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, 2), np.float32, sharding=SingleDeviceSharding(device))
