"""Exchange tensors through DLPack: with jax, numpy, torch on other devices and other libraries.

Values are copied, on the device if both tensors are on the same one. XLA buffers are immutable, are shared by several
tensors, and may be donated when a step ends; so memory that other code writes or still reads cannot be such a buffer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import dlpack as torch_dlpack

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.execution import executor

_CPU = 1  # DLDeviceType


def _buffer(tensor: torch.Tensor) -> jax.Array:
    if tensor.device.type != "xla":
        raise ValueError(f"to_dlpack: expected an xla tensor, got one on {tensor.device}")
    (node,) = recorder.bindings().nodes_of([tensor.detach()])
    executor.materialize([node], tensor.device.index)
    buffer: jax.Array = node.buffer
    return buffer


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """Export a copy of the tensor's values, in its dtype, as a DLPack PyCapsule on the hardware of its device.

    Values with a narrower storage dtype (``XLA_USE_BF16``) are converted. A capsule has a single consumer:
    ``torch.utils.dlpack.from_dlpack`` or ``from_dlpack`` of this module.

    Args:
      xla_tensor: an xla tensor.

    Raises:
      ValueError: the tensor is not on an xla device.
      BufferError: DLPack does not support the dtype or the hardware.
    """
    buffer = _buffer(xla_tensor)
    try:
        with recorder.enable_x64():
            return jnp.array(buffer, dtype=dtypes.numpy_dtype(xla_tensor.dtype), copy=True).__dlpack__()
    except Exception as error:
        raise BufferError(
            f"to_dlpack: {xla_tensor.dtype}{list(xla_tensor.shape)} on {xla_tensor.device} cannot be exported "
            f"({error}); use .cpu()"
        ) from error


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """Import a copy of the values of a PyCapsule, or of an object with ``__dlpack__``, as an xla tensor.

    The tensor is on the xla device of the hardware that holds the values; values on the CPU are copied to the current
    xla device if the CPU is not an xla device.

    Args:
      ext_tensor: the capsule, or the object.

    Raises:
      TypeError: the object is neither, or torch does not support its dtype.
    """
    if isinstance(ext_tensor, jax.Array):
        return _from_jax(ext_tensor)
    if hasattr(ext_tensor, "__dlpack__"):
        if ext_tensor.__dlpack_device__()[0] == _CPU:
            return torch.from_dlpack(ext_tensor).to("xla")
        return _from_jax(jax.dlpack.from_dlpack(ext_tensor))
    if type(ext_tensor).__name__ != "PyCapsule":
        raise TypeError(f"from_dlpack: expected a PyCapsule or an object with __dlpack__, got {type(ext_tensor)}")
    return _from_capsule(ext_tensor)


class _Capsule:
    """Wraps a capsule as an object with ``__dlpack__``, as jax requires; on the first device that is not a CPU."""

    def __init__(self, capsule: Any, kind: int) -> None:
        self._capsule, self._kind = capsule, kind

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 0


def _from_capsule(capsule: Any) -> torch.Tensor:
    # A capsule does not expose its device; its consumers do. torch takes CPU memory, and CUDA memory if built with it.
    if capabilities.default_runs_in_process() or torch.cuda.is_available():
        return from_dlpack(torch_dlpack.from_dlpack(capsule))
    return _from_jax(jax.dlpack.from_dlpack(_Capsule(capsule, 2)))


def _from_jax(array: jax.Array) -> torch.Tensor:
    try:
        dtype = dtypes.torch_dtype_of_storage(array.dtype)
    except KeyError as error:
        raise TypeError(f"from_dlpack: torch has no dtype for {array.dtype}{list(array.shape)}") from error
    (place, *others) = array.devices()
    known = devices.devices()
    ordinal = known.index(place) if not others and place in known else int(recorder.bindings().current_device())
    with recorder.enable_x64():
        copied = jnp.array(
            jax.device_put(array, devices.device(ordinal)), dtype=dtypes.storage_numpy_dtype(dtype), copy=True
        )
    result: torch.Tensor = recorder.bindings().make_tensor(copied, dtypes.TO_CODE[dtype], ordinal)
    return result
