"""Transfers between torch CPU tensors and device buffers (jax.Array). The recorder calls these; all of them copy.

If the storage dtype (``dtypes.storage_dtype``) is narrower than torch's, values are converted on the CPU: transfers
move the storage dtype.
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
from torch_xla._engine.base import dtypes, user_frames
from torch_xla._engine.device import abstract_device, capabilities, devices
from torch_xla._engine.device.abstract_device import AbstractArray
from torch_xla._engine.diagnostics import buffer_provenance, metrics, profiler_spans, step_timings, xla_errors
from torch_xla._engine.execution import value_errors
from torch_xla._engine.parallel import replica_program, spmd

_log = logging.getLogger("torch_xla.transfer")

#: torch has no numpy view of these dtypes; their bits are transferred as integers of the same width.
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


#: Up to this size the calling thread copies alone. torch would start an OpenMP team for the copy, which then competes
#: for cores with XLA's threads.
_MOST_SERIAL_BYTES = 1 << 24

#: numpy's limit. XLA and torch have none; values with more dimensions are transferred flattened.
_MOST_DIMS = 64


def upload(tensor: torch.Tensor, ordinal: int) -> jax.Array:
    """Copy a dense, contiguous CPU tensor to a device buffer. Raises TypeError for an unsupported dtype."""
    if not dtypes.is_supported(tensor.dtype):
        raise TypeError(
            f"{tensor.dtype} is not supported on xla; convert the tensor (shape {list(tensor.shape)}) first"
        )
    tensor = tensor.detach()  # a plain tensor: a lazy module's parameter has no shape to name
    place = devices.device(ordinal)
    if abstract_device.is_enabled():
        return _upload_abstract(tensor, place)  # type: ignore[return-value]  # implements the used part of jax.Array
    start = time.perf_counter_ns()
    try:
        buffer, size = profiler_spans.call_in_span("host_to_device", _put, tensor, place)
    except jax.errors.JaxRuntimeError as error:
        doing = f"moving a tensor to the device ({tensor.dtype}{list(tensor.shape)})"
        raise xla_errors.translate_xla_error(error, doing, ordinal) from error
    metrics.add_duration("TransferToServerTime", time.perf_counter_ns() - start)
    metrics.metric("OutboundData", metrics.format_bytes).add(size)
    _record_provenance("upload")
    recorder.bindings().set_unsharded_bytes(size)
    if _log.isEnabledFor(logging.INFO):
        _log.info("to xla:%d: %s%s", ordinal, tensor.dtype, list(tensor.shape))
    return buffer


def _put(tensor: torch.Tensor, place: jax.Device) -> tuple[jax.Array, int]:
    """Return a copy of the tensor on the device, and the bytes that were transferred."""
    # jax (0.10.2) lets a buffer on the CPU share the memory of an aligned array, also where may_alias is False: a
    # later write to the tensor would show on the device, and one on the device (donation) in the tensor.
    # A tensor on another device (CUDA) passes through the host.
    shares = capabilities.shares_host_memory(place)
    flat = tensor.dim() > _MOST_DIMS
    host = _copy_to_host(tensor.reshape(-1) if flat else tensor, copy=shares)
    with recorder.allow_transfers(wide=True):
        buffer = spmd.upload(host, place)
    if flat:
        buffer = _reshape(buffer, tensor.shape)
    if not shares:  # the caller may overwrite its tensor after the return
        buffer.block_until_ready()
    return buffer, host.nbytes


def _copy_to_host(tensor: torch.Tensor, copy: bool) -> np.ndarray:
    """Return the values in the storage dtype, in memory of the CPU: that of the tensor if ``copy`` is false."""
    dtype = dtypes.storage_dtype(tensor.dtype)
    if copy and tensor.dtype == dtype and tensor.is_cpu and tensor.nbytes <= _MOST_SERIAL_BYTES:
        return _to_host(tensor).copy()
    return _to_host(tensor.to("cpu", dtype, copy=copy))


def _upload_abstract(tensor: torch.Tensor, place: jax.Device) -> AbstractArray:
    _record_provenance("upload")
    return spmd.abstract_upload(tuple(tensor.shape), dtypes.storage_numpy_dtype(tensor.dtype), place)


def _to_host(tensor: torch.Tensor) -> np.ndarray:
    bits = _BITS.get(tensor.dtype)
    if bits is None:
        values: np.ndarray = tensor.numpy()
        return values
    return tensor.view(bits).numpy().view(dtypes.numpy_dtype(tensor.dtype))


def _reshape(buffer: jax.Array, shape: Sequence[int]) -> jax.Array:
    with recorder.enable_x64():
        return buffer.reshape(shape)


def _record_provenance(kind: str) -> None:
    kind = "fallback" if step_timings.current_fallback() else kind
    recorder.bindings().set_provenance(buffer_provenance.provenance_id(kind, user_frames.user_line_or_none() or ""))


def download(buffer: jax.Array, dtype_code: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Copy a buffer to a new CPU tensor of torch dtype ``dtype_code`` and the given shape; blocks until computed.

    The buffer may be padded (see sharding_ids.py).
    """
    dtype = dtypes.FROM_CODE[dtype_code]
    if abstract_device.is_enabled():
        if not step_timings.current_fallback():
            step_timings.record_read(user_frames.user_line(), 0)
        return torch.zeros(shape, dtype=dtype)
    start = time.perf_counter_ns()
    try:
        tensor, waited = profiler_spans.call_in_span("device_to_host", _fetch, buffer, shape)
        size = tensor.nbytes
        if tensor.dtype != dtype:
            tensor = tensor.to(dtype)
    except jax.errors.JaxRuntimeError as error:
        doing = f"reading a tensor ({dtype}{list(shape)})"
        raise xla_errors.translate_xla_error(error, doing, devices.ordinal(buffer)) from error
    duration = time.perf_counter_ns() - start
    metrics.add_duration("TransferFromServerTime", duration, nested=waited)
    metrics.metric("InboundData", metrics.format_bytes).add(size)
    if not step_timings.current_fallback():
        step_timings.record_read(user_frames.user_line(), duration)
    value_errors.raise_computed(devices.ordinal(buffer), buffer)
    if _log.isEnabledFor(logging.INFO):
        _log.info("from the device: %s%s", dtype, list(shape))
    return tensor


def _fetch(buffer: jax.Array, shape: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """Return a copy of the buffer on the CPU, and the ns until it was computed."""
    start = time.perf_counter_ns()
    profiler_spans.call_in_span("wait", buffer.block_until_ready)
    waited = time.perf_counter_ns() - start
    step_timings.add_time("wait", waited)
    profiler_spans.flush_finished_events()
    with recorder.allow_transfers():
        host = _reshape(buffer, (-1,)) if buffer.ndim > _MOST_DIMS else spmd.unpad(spmd.gather_to_host(buffer), shape)
        host = np.ascontiguousarray(host)
    # Memory allocated by torch: a tensor that shares memory with numpy could not be resized.
    tensor = torch.empty(shape, dtype=dtypes.torch_dtype(buffer.dtype))
    ctypes.memmove(tensor.data_ptr(), host.ctypes.data, host.nbytes)
    return tensor, waited


def copy_between_devices(buffer: jax.Array, ordinal: int) -> jax.Array:
    """Copy a buffer to another device."""
    if abstract_device.is_enabled():
        _record_provenance("transfer")
        place = SingleDeviceSharding(devices.device(ordinal))
        return AbstractArray(buffer.shape, buffer.dtype, place)  # type: ignore[return-value]
    doing = lambda: f"moving a tensor from another device ({buffer.dtype}{list(buffer.shape)})"
    with (
        profiler_spans.span("device_to_device"),
        metrics.record_time("TransferDeviceToDeviceTime"),
        recorder.enable_x64(),
        xla_errors.translate_xla_errors(doing, ordinal),
    ):
        moved: jax.Array = jax.device_put(
            replica_program.to_local_array(buffer), devices.device(ordinal), may_alias=False
        )
    _record_provenance("transfer")
    return moved


def download_shard(shard: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    """Copy the shard of one device to a new CPU tensor; blocks until computed."""
    return download(shard, dtypes.TO_CODE[dtype], tuple(shard.shape))


def upload_shards(
    shards: Sequence[tuple[torch.Tensor, jax.Device]], dtype: torch.dtype, shape: tuple[int, ...], sharding: Sharding
) -> jax.Array:
    """Assemble a sharded array of the given shape from a CPU tensor for each device of this process.

    A tensor that is shorter than the device's shard is padded with zeros. Records the sharding of the buffer.
    """
    doing = lambda: f"moving the shards of a tensor to the devices ({dtype}{list(shape)})"
    shard_shape = sharding.shard_shape(shape)
    with (
        profiler_spans.span("host_to_device"),
        metrics.record_time("TransferToServerTime"),
        xla_errors.translate_xla_errors(doing, 0),
        recorder.enable_x64(),
    ):
        placed = []
        for tensor, place in shards:
            own = (
                tensor.detach()
                .to(dtypes.storage_dtype(dtype), copy=capabilities.shares_host_memory(place))
                .contiguous()
            )
            placed.append(jax.device_put(spmd.pad_to(_to_host(own), shard_shape), place, may_alias=False))
        array = jax.make_array_from_single_device_arrays(shape, sharding, placed)
        array.block_until_ready()
    metrics.metric("OutboundData", metrics.format_bytes).add(sum(shard.nbytes for shard in placed))
    _record_provenance("upload")
    return spmd.note_buffer_sharding(array, sharding)
