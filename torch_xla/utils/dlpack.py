"""Exchange of values with jax, numpy, torch on other devices, and whoever else speaks DLPack.

Values are copied, on the device where it is the same one. A buffer of XLA never changes, is shared by many tensors, and
may be given away when a step ends; memory that somebody else can write to, or still reads, must not be one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils import dlpack as torch_dlpack

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.device import devices
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
    """A PyCapsule (DLPack) with a copy of the tensor's values in its dtype, on the hardware behind its device.

    A device may store them narrower (``XLA_USE_BF16`` and its like); they are converted. A capsule is for one consumer:
    ``torch.utils.dlpack.from_dlpack`` or ``from_dlpack`` here. ValueError for a tensor of another device; BufferError
    for a dtype or hardware that DLPack cannot describe.
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
    """An xla tensor with a copy of the values of a PyCapsule, or of an object with ``__dlpack__``.

    It is put on the xla device of the hardware where the values are; values of the CPU on the current xla device, if
    the CPU is none. TypeError for an object that is neither, or a dtype that torch does not have.
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
    """A capsule as an object with ``__dlpack__``, which is what jax takes; of the first device that is no CPU."""

    def __init__(self, capsule: Any, kind: int) -> None:
        self._capsule, self._kind = capsule, kind

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 0


def _from_capsule(capsule: Any) -> torch.Tensor:
    # A capsule does not say where its memory is; its consumers do. torch knows the CPU, and CUDA where it is built so.
    if devices.platform() == "cpu" or torch.cuda.is_available():
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
