"""Values between torch's CPU tensors and device buffers (jax.Array). The recorder calls these; both sides copy.

Where the device stores a dtype as a narrower one (``dtypes.stored``), values are converted on the CPU: what travels is
what the device holds.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Sequence

import jax
import numpy as np
import torch
from jax.sharding import Sharding, SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes, frames
from torch_xla._engine.device import abstract, devices
from torch_xla._engine.device.abstract import AbstractArray
from torch_xla._engine.diagnostics import errors, journal, metrics, provenance, spans
from torch_xla._engine.parallel import replicated, sharded

_log = logging.getLogger("torch_xla.transfer")

#: torch has no numpy view of these; their bits travel as integers of the same width.
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


#: Of an array of numpy. XLA and torch know no such limit; values with more travel as one long row.
_MOST_DIMS = 64


def upload(tensor: torch.Tensor, ordinal: int) -> jax.Array:
    """A device buffer with the values of a dense, contiguous CPU tensor. TypeError for a dtype that no device has."""
    if not dtypes.is_supported(tensor.dtype):
        raise TypeError(f"{tensor.dtype} does not exist on xla; convert the tensor (shape {list(tensor.shape)}) first")
    tensor = tensor.detach()  # a plain tensor: a lazy module's parameter has no shape to name
    place = devices.device(ordinal)
    if abstract.is_on():
        return _upload_nothing(tensor, place)  # type: ignore[return-value]  # as much of an array as is used
    doing = lambda: f"moving a tensor to the device ({tensor.dtype}{list(tensor.shape)})"
    with spans.span("to_device"), metrics.timed("TransferToServerTime"), errors.explained(doing, ordinal):
        # jax (0.10.2) lets a buffer on the CPU share the memory of an aligned array, also where may_alias is False: a
        # later write to the tensor would show on the device, and one on the device (donation) in the tensor.
        own = tensor.to(dtypes.stored(tensor.dtype), copy=place.platform == "cpu")
        flat = own.dim() > _MOST_DIMS
        host = _to_host(own.reshape(-1) if flat else own)
        with recorder.wide_types():
            buffer = sharded.put(host, place)
            buffer = buffer.reshape(own.shape) if flat else buffer
            # The caller may write to its tensor as soon as we return.
            buffer.block_until_ready()
    metrics.metric("OutboundData", metrics.format_bytes).add(host.nbytes)
    _made("upload")
    _log.info("to xla:%d: %s%s", ordinal, tensor.dtype, list(tensor.shape))
    return buffer


def _upload_nothing(tensor: torch.Tensor, place: jax.Device) -> AbstractArray:
    _made("upload")
    return sharded.abstract_upload(tuple(tensor.shape), dtypes.to_numpy(tensor.dtype), place)


def _to_host(tensor: torch.Tensor) -> np.ndarray:
    bits = tensor.view(_BITS.get(tensor.dtype, tensor.dtype))
    view: np.ndarray = bits.numpy().view(dtypes.namesake(tensor.dtype))
    return view


def _flat(buffer: jax.Array) -> jax.Array:
    with recorder.wide_types():
        return buffer.reshape(-1)


def _made(kind: str) -> None:
    kind = "fallback" if journal.falling_back() else kind
    recorder.module().set_provenance(provenance.number(kind, frames.known_line() or ""))


def download(buffer: jax.Array, dtype_code: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A new CPU tensor of torch dtype ``dtype_code`` and the shape, with the buffer's values; waits for them.

    The buffer may be longer than the tensor (see shardings.py).
    """
    dtype = dtypes.FROM_CODE[dtype_code]
    if abstract.is_on():
        if not journal.falling_back():
            journal.read(frames.user_line(), 0)
        return torch.zeros(shape, dtype=dtype)
    start = time.perf_counter_ns()
    doing = lambda: f"reading a tensor ({dtype}{list(shape)})"
    with (
        spans.span("to_host"),
        metrics.timed("TransferFromServerTime"),
        recorder.allow_transfers(),
        errors.explained(doing, devices.ordinal(buffer)),
    ):
        with journal.spent("wait"), spans.span("wait"):
            buffer.block_until_ready()
        spans.tell_ended()
        host = _flat(buffer) if buffer.ndim > _MOST_DIMS else sharded.visible(sharded.whole(buffer), shape)
        host = np.ascontiguousarray(host)
        # torch's own memory: a tensor over numpy's, or one that numpy has seen, could not be resized.
        tensor = torch.empty(shape, dtype=dtypes.named(buffer.dtype))
        ctypes.memmove(tensor.data_ptr(), host.ctypes.data, host.nbytes)
        tensor = tensor.to(dtype)
    metrics.metric("InboundData", metrics.format_bytes).add(host.nbytes)
    if not journal.falling_back():
        journal.read(frames.user_line(), time.perf_counter_ns() - start)
    _log.info("from the device: %s%s", dtype, list(shape))
    return tensor


def transfer(buffer: jax.Array, ordinal: int) -> jax.Array:
    """The buffer's values on another device."""
    if abstract.is_on():
        _made("transfer")
        place = SingleDeviceSharding(devices.device(ordinal))
        return AbstractArray(buffer.shape, buffer.dtype, place)  # type: ignore[return-value]
    doing = lambda: f"moving a tensor from another device ({buffer.dtype}{list(buffer.shape)})"
    with (
        spans.span("between_devices"),
        metrics.timed("TransferDeviceToDeviceTime"),
        recorder.wide_types(),
        errors.explained(doing, ordinal),
    ):
        moved: jax.Array = jax.device_put(replicated.local(buffer), devices.device(ordinal), may_alias=False)
    _made("transfer")
    return moved


def read_part(part: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    """A new CPU tensor with what one device holds of an array; waits for it."""
    return download(part, dtypes.TO_CODE[dtype], tuple(part.shape))


def upload_parts(
    parts: Sequence[tuple[torch.Tensor, jax.Device]], dtype: torch.dtype, shape: tuple[int, ...], lies: Sharding
) -> jax.Array:
    """An array of the given shape, which devices hold in parts: of each device of this process, the CPU tensor.

    A part may be shorter than the device's; the rest is zeros. The next buffer made is noted to lie so.
    """
    doing = lambda: f"moving the parts of a tensor to the devices ({dtype}{list(shape)})"
    own = lies.shard_shape(shape)
    with (
        spans.span("to_device"),
        metrics.timed("TransferToServerTime"),
        errors.explained(doing, 0),
        recorder.wide_types(),
    ):
        placed = []
        for tensor, place in parts:
            kept = tensor.detach().to(dtypes.stored(dtype), copy=place.platform == "cpu").contiguous()
            placed.append(jax.device_put(sharded.filled(_to_host(kept), own), place, may_alias=False))
        array = jax.make_array_from_single_device_arrays(shape, lies, placed)
        array.block_until_ready()
    metrics.metric("OutboundData", metrics.format_bytes).add(sum(part.nbytes for part in placed))
    _made("upload")
    return sharded.noted(array, lies)
