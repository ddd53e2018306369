"""Lower torch's quantized-graph operators (``torch.ops.quantized_decomposed``) on xla to a few operations each.

Importing this module registers them. torch's own decompositions loop over the channels of a tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._engine.compat import pallas_attention

__all__ = [
    "xla_dequantize_per_channel",
    "xla_dequantize_per_tensor",
    "xla_quantize_per_channel",
    "xla_quantize_per_tensor",
]


def xla_quantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return ``input / scale + zero_point``, rounded, and clamped to the bounds."""
    _check("quantize_per_tensor", input, quant_min, quant_max, dtype)
    return _round_and_clamp(input, 1.0 / scale, zero_point, quant_min, quant_max, dtype)


def xla_quantize_per_channel(
    input: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int, quant_min: int, quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """Quantize like xla_quantize_per_tensor, with a scale and a zero point per index along ``axis``."""
    _check("quantize_per_channel", input, quant_min, quant_max, dtype)
    scale, zero = _broadcast_along_axis("quantize_per_channel", axis, input, scales, zero_points)
    return _round_and_clamp(input, 1.0 / scale, zero, quant_min, quant_max, dtype)


def xla_dequantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype, *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return ``(input - zero_point) * scale``, in float32 unless ``out_dtype`` is given."""
    _check_stored("dequantize_per_tensor", input, dtype)
    wanted = torch.float32 if out_dtype is None else out_dtype
    found: torch.Tensor = (input.to(wanted) - zero_point) * scale
    return found


def xla_dequantize_per_channel(
    input: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, axis: int, quant_min: int,
    quant_max: int, dtype: torch.dtype, *, out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Dequantize like xla_dequantize_per_tensor, with a scale and a zero point per index along ``axis``."""
    _check_stored("dequantize_per_channel", input, dtype)
    points = torch.zeros_like(scales, dtype=torch.int32) if zero_points is None else zero_points
    scale, zero = _broadcast_along_axis("dequantize_per_channel", axis, input, scales, points)
    wanted = torch.float32 if out_dtype is None else out_dtype
    return ((input.to(torch.float32) - zero) * scale).to(wanted)


def _round_and_clamp(
    input: torch.Tensor, factor: Any, zero: Any, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    found: torch.Tensor = (torch.round(input.to(torch.float32) * factor) + zero).clamp(low, high).to(dtype)
    return found


def _broadcast_along_axis(
    what: str, axis: int, input: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points in a shape that broadcasts to the input's."""
    if not -input.dim() <= axis < input.dim():
        raise ValueError(f"{what}: axis {axis} is out of range for a tensor of shape {list(input.shape)}")
    size = input.shape[axis]
    if scales.shape != (size,) or zeros.shape != (size,):
        raise ValueError(
            f"{what}: expected {size} scales and zero points for axis {axis} of {list(input.shape)}, got "
            f"{list(scales.shape)} and {list(zeros.shape)}"
        )
    shape = [1] * input.dim()
    shape[axis] = size
    return scales.reshape(shape).to(torch.float32), zeros.reshape(shape).to(torch.float32)


def _check(what: str, input: torch.Tensor, low: int, high: int, dtype: torch.dtype) -> None:
    if not input.dtype.is_floating_point:
        raise TypeError(f"{what}: expected a floating input, got {input.dtype}")
    if dtype.is_floating_point or dtype == torch.bool:
        return
    bounds = torch.iinfo(dtype)
    if low < bounds.min or high > bounds.max:
        raise ValueError(f"{what}: bounds {low} to {high} exceed the range of {dtype}, {bounds.min} to {bounds.max}")


def _check_stored(what: str, input: torch.Tensor, dtype: torch.dtype) -> None:
    if input.dtype != dtype:
        raise TypeError(f"{what}: expected an input of {dtype}, got {input.dtype}")


pallas_attention.load_quantized_operators()
_library = torch.library.Library("quantized_decomposed", "IMPL")
_library.impl("quantize_per_tensor", xla_quantize_per_tensor, "XLA")
_library.impl("quantize_per_channel", xla_quantize_per_channel, "XLA")
_library.impl("dequantize_per_tensor", xla_dequantize_per_tensor, "XLA")
_library.impl("dequantize_per_channel", xla_dequantize_per_channel, "XLA")
