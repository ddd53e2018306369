"""Values between torch's CPU tensors and device buffers (jax.Array). The recorder calls these; both sides copy."""

from __future__ import annotations

import ctypes

import jax
import numpy as np
import torch

from torch_xla._engine import devices, dtypes, failures, metrics

#: torch has no numpy view of these; their bits travel as integers of the same width.
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def upload(tensor: torch.Tensor, ordinal: int) -> jax.Array:
    """A device buffer with the values of a dense, contiguous CPU tensor. TypeError for a dtype that no device has."""
    if not dtypes.is_supported(tensor.dtype):
        raise TypeError(f"{tensor.dtype} does not exist on xla; convert the tensor (shape {list(tensor.shape)}) first")
    doing = lambda: f"moving a tensor to the device ({tensor.dtype}{list(host.shape)})"
    with metrics.timed("TransferToServerTime"), failures.explained(doing, ordinal):
        host: np.ndarray = (
            tensor.detach().view(_BITS.get(tensor.dtype, tensor.dtype)).numpy().view(dtypes.to_numpy(tensor.dtype))
        )
        with jax.enable_x64(True):
            buffer: jax.Array = jax.device_put(host, devices.device(ordinal), may_alias=False)
            # The caller may write to its tensor as soon as we return.
            buffer.block_until_ready()
    metrics.metric("OutboundData", metrics.format_bytes).add(host.nbytes)
    return buffer


def download(buffer: jax.Array, dtype_code: int) -> torch.Tensor:
    """A new CPU tensor of torch dtype ``dtype_code`` with the buffer's values; waits for them."""
    dtype = dtypes.FROM_CODE[dtype_code]
    doing = lambda: f"reading a tensor ({dtype}{list(buffer.shape)})"
    with metrics.timed("TransferFromServerTime"), failures.explained(doing, devices.ordinal(buffer)):
        host = np.ascontiguousarray(np.asarray(buffer))
        # torch's own memory: a tensor over numpy's, or one that numpy has seen, could not be resized.
        tensor = torch.empty(buffer.shape, dtype=dtype)
        ctypes.memmove(tensor.data_ptr(), host.ctypes.data, host.nbytes)
    metrics.metric("InboundData", metrics.format_bytes).add(host.nbytes)
    return tensor


def transfer(buffer: jax.Array, ordinal: int) -> jax.Array:
    """The buffer's values on another device."""
    doing = lambda: f"moving a tensor from another device ({buffer.dtype}{list(buffer.shape)})"
    with metrics.timed("TransferDeviceToDeviceTime"), jax.enable_x64(True), failures.explained(doing, ordinal):
        moved: jax.Array = jax.device_put(buffer, devices.device(ordinal), may_alias=False)
        return moved
