"""Zero-copy conversion between xla tensors and jax arrays (to_jax, from_jax).

The recorder donates a buffer that no tensor needs any more, and the next program overwrites it. While a user's array is
alive, this module holds a reference to the node with the same buffer, which prevents its donation.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.device import devices
from torch_xla._engine.execution import executor
from torch_xla._engine.parallel import spmd

#: id of a user's array -> (weak reference with a callback at its death, the node that shares its buffer).
_shared: dict[int, tuple[weakref.ref[jax.Array], Any]] = {}


def _share(array: jax.Array, node: Any) -> None:
    number = id(array)
    _shared[number] = weakref.ref(array, lambda _: _forget(number)), node


def _forget(number: int) -> None:
    _shared.pop(number, None)


def _alias_array(array: jax.Array) -> jax.Array:
    """Return another array with the same buffer and an independent lifetime."""
    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts, dtype=array.dtype)


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """See torch_xla.interop.to_jax."""
    if tensor.device.type != "xla":
        raise TypeError(f"to_jax: expected an xla tensor, got {tensor.dtype}{list(tensor.shape)} on {tensor.device}")
    (node,) = recorder.bindings().nodes_of([tensor.detach()])
    executor.materialize([node], tensor.device.index)
    buffer: jax.Array = spmd.value_of(node.buffer)
    if tuple(buffer.shape) != node.shape:  # split unevenly: what only fills it up stays here
        with recorder.enable_x64():
            seen: jax.Array = spmd.unpad(buffer, node.shape).astype(dtypes.numpy_dtype(tensor.dtype))
        return seen
    if buffer.dtype != dtypes.numpy_dtype(tensor.dtype):
        with recorder.enable_x64():
            return buffer.astype(dtypes.numpy_dtype(tensor.dtype))
    with recorder.enable_x64():
        array = _alias_array(buffer)
    _share(array, node)
    return array


def from_jax(array: jax.Array) -> torch.Tensor:
    """See torch_xla.interop.from_jax."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        raise TypeError(f"from_jax: expected a jax.Array with a value, got {type(array)}")
    if array.is_deleted():
        raise ValueError(f"from_jax: {array.dtype}{list(array.shape)} has been deleted or donated")
    dtype = _dtype(array)
    placed, ordinal = _to_xla_device(array)
    with recorder.enable_x64():
        if placed.dtype != dtypes.storage_numpy_dtype(dtype):
            placed = placed.astype(dtypes.storage_numpy_dtype(dtype))
        buffer = _alias_array(placed)
    spmd.note_sharding(buffer)
    tensor: torch.Tensor = recorder.bindings().make_tensor(buffer, dtypes.TO_CODE[dtype], ordinal)
    (node,) = recorder.bindings().nodes_of([tensor])
    _share(array, node)
    return tensor


def _dtype(array: jax.Array) -> torch.dtype:
    try:
        return dtypes.torch_dtype(array.dtype)
    except (KeyError, TypeError) as error:
        raise TypeError(
            f"from_jax: torch has no dtype for {array.dtype}{list(array.shape)}; convert it first (astype, "
            "jax.random.key_data)"
        ) from error


def _to_xla_device(array: jax.Array) -> tuple[jax.Array, int]:
    """Return the array on an xla device, copied only if it is on another one, and the ordinal of that device."""
    current = int(recorder.bindings().current_device())
    spread = spmd.replicate(array)
    if spread is not None:
        return spread, 0
    if not array.is_fully_addressable:
        raise ValueError(
            f"from_jax: {array.dtype}{list(array.shape)} has shards on devices of other processes ({array.sharding}); "
            "gather it first, or use SPMD (torch_xla.runtime.use_spmd)"
        )
    (place, *others) = array.devices()
    known = devices.devices()
    if not others and place in known:
        return array, known.index(place)
    return jax.device_put(array, devices.device(current), may_alias=False), current
