"""Counts the operations of matmuls, convolutions, attention kernels and windowed reductions in HLO."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_xla._engine.aot.hlo_parser import HloInstruction, HloShape

#: The cost estimate that a Pallas kernel for TPUs declares.
_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"?(\d+)')
#: jax's kernels without a cost estimate -> number of matmuls of the size of queries @ keys that they compute.
_ATTENTION = {
    "flash_mha_bwd_dq": 3, "flash_mha_bwd_dkv": 4, "splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4,
    "splash_mqa_fwd": 2, "splash_mqa_dq": 3, "splash_mqa_dkv": 4,
}  # fmt: skip
#: The same for jax's Triton kernels, whose arrays are [batch, length, head, size], and for cuDNN's.
_ATTENTION_ON_GPUS = {
    "mha_forward": 2, "mha_backward": 7, "__cudnn$fmha": 2, "__cudnn$fmha Backward": 5,
}  # fmt: skip
#: Sums the products of output and gradient for each row.
_TRITON_ROW_SUMS = "mha_preprocess_backward"
_TRITON_NAME = re.compile(r'\bname = "(\w+)"')
_GEMM = re.compile(r"__cublas|__triton_gemm|cublasLt", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConvWindow:
    """The window of a convolution or reduce-window, one value per spatial dimension; empty without a window."""

    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    low: tuple[int, ...] = ()
    image_dilation: tuple[int, ...] = ()
    kernel_dilation: tuple[int, ...] = ()


def parse_window(instruction: HloInstruction) -> ConvWindow:
    """Parse the window attribute of an instruction."""
    text = instruction.attribute("window")
    if text is None:
        return ConvWindow()
    fields = dict(part.split("=") for part in text.strip("{}").split() if "=" in part)
    size = _numbers(fields["size"])
    ones = (1,) * len(size)
    pads = [int(pair.split("_")[0]) for pair in fields["pad"].split("x")] if "pad" in fields else [0] * len(size)
    return ConvWindow(
        size,
        _numbers(fields["stride"]) if "stride" in fields else ones,
        tuple(pads),
        _numbers(fields["lhs_dilate"]) if "lhs_dilate" in fields else ones,
        _numbers(fields["rhs_dilate"]) if "rhs_dilate" in fields else ones,
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split("x"))


def multiply_add_count(instruction: HloInstruction, operands: Sequence[HloShape]) -> float | None:
    """Return the multiplications and additions of a matmul or convolution; None for other instructions."""
    if instruction.opcode == "dot" and len(operands) > 1:
        return _dot(instruction, operands[0])
    if instruction.opcode == "convolution" and len(operands) > 1:
        return _convolution(instruction, operands[0], operands[1], instruction.shapes[0])
    if instruction.opcode == "custom-call" and len(operands) > 1:
        return _custom(instruction, operands)
    return None


def _custom(instruction: HloInstruction, operands: Sequence[HloShape]) -> float | None:
    target = instruction.attribute("custom_call_target") or ""
    out = instruction.shapes[0]
    if is_pallas_kernel(instruction):
        return _pallas_flops(instruction, operands)
    if "__cudnn$fmha" in target:
        return _attention_flops("__cudnn$fmha Backward" if "Backward" in target else "__cudnn$fmha", operands)
    if "__cudnn$conv" in target:  # the window and the labels are those of the forward convolution
        if "BackwardInput" in target:
            return _convolution(instruction, out, operands[1], operands[0])
        if "BackwardFilter" in target:
            return _convolution(instruction, operands[0], out, operands[1])
        return _convolution(instruction, operands[0], operands[1], out)
    return _dot(instruction, operands[0]) if _GEMM.search(target) else None


def is_pallas_kernel(instruction: HloInstruction) -> bool:
    """Return whether an instruction is a Pallas kernel, which is opaque to XLA."""
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    return target == "tpu_custom_call" or "triton_kernel" in target or target == "__gpu$xla.gpu.triton"


def _pallas_flops(instruction: HloInstruction, operands: Sequence[HloShape]) -> float | None:
    """Return the flops that the kernel declares; for attention kernels, those without a mask; None if unknown."""
    estimate = _ESTIMATE.search(instruction.attributes)
    if estimate:
        return float(estimate[1])
    triton = _TRITON_NAME.search(instruction.attributes)
    if triton is not None and triton[1] == _TRITON_ROW_SUMS:
        return 2.0 * operands[0].elements
    if triton is not None and triton[1] in _ATTENTION_ON_GPUS:
        return _attention_flops(triton[1], operands)
    count = next((count for name, count in _ATTENTION.items() if instruction.name.startswith(name)), None)
    arrays = [shape for shape in operands if len(shape.dims) > 2 and shape.dtype in ("bf16", "f32", "f16")]
    if count is None or len(arrays) < 2:
        return None
    query, key = arrays[:2]
    return 2.0 * count * query.elements * key.dims[-2]


def _attention_flops(kernel: str, operands: Sequence[HloShape]) -> float:
    """Return the flops of a kernel without its mask. ``operands`` begin with queries and keys."""
    query, key = operands[:2]
    return 2.0 * _ATTENTION_ON_GPUS[kernel] * query.elements * key.dims[1]


def _dot(instruction: HloInstruction, left: HloShape) -> float:
    found = re.search(r'"?lhs_contracting_dim(?:ension)?s"?[=:][\[{]([0-9,"]*)[\]}]', instruction.attributes)
    axes = [int(n) for n in re.findall(r"\d+", found[1])] if found else []
    return 2.0 * instruction.shapes[0].elements * math.prod(left.dims[axis] for axis in axes)


def _convolution(instruction: HloInstruction, image: HloShape, kernel: HloShape, out: HloShape) -> float:
    labels = instruction.attribute("dim_labels")
    found = re.fullmatch(r"(\w+)_(\w+)->(\w+)", labels) if labels else None
    if found is None:
        return 0.0
    frame = parse_window(instruction)
    of_image, of_kernel, of_out = found[1], found[2], found[3]
    pairs = 1
    for axis in range(len(frame.size)):
        name = str(axis)
        pairs *= _valid_taps(frame, axis, image.dims[of_image.index(name)], out.dims[of_out.index(name)])
    batches = out.dims[of_out.index("b")] * out.dims[of_out.index("f")]
    groups = int(instruction.attribute("batch_group_count") or 1)
    if groups > 1 and image.dims[of_image.index("b")] != out.dims[of_out.index("b")] * groups:
        groups = 1
    return 2.0 * batches * kernel.dims[of_kernel.index("i")] * pairs


def reduced_element_count(instruction: HloInstruction, array: HloShape) -> float:
    """Return the number of elements that a reduce-window combines, without padding.

    libtpu turns a reduction whose result is broadcast again into a reduce-window of which each window covers the whole
    axis. It reduces the axis once.
    """
    frame = parse_window(instruction)
    count = len(instruction.shapes)
    for axis in range(len(frame.size)):
        length, out = array.dims[axis], instruction.shapes[0].dims[axis]
        count *= length if _covers_axis(frame, axis, length, out) else _valid_taps(frame, axis, length, out)
    return float(count)


def _covers_axis(frame: ConvWindow, axis: int, image: int, out: int) -> bool:
    """Return whether each window of an axis contains all its elements."""
    if frame.kernel_dilation[axis] != 1:
        return False
    first, last = -frame.low[axis], (out - 1) * frame.stride[axis] - frame.low[axis]
    return last <= 0 and first + frame.size[axis] > (image - 1) * frame.image_dilation[axis]


def _valid_taps(frame: ConvWindow, axis: int, image: int, out: int) -> int:
    """Count the (output, tap) pairs of an axis that read an image element, not padding or dilation."""
    stride, low, size = frame.stride[axis], frame.low[axis], frame.size[axis]
    dilation, holes = frame.kernel_dilation[axis], frame.image_dilation[axis]
    reach = (image - 1) * holes
    if stride == dilation == holes == 1 and low == 0 and out + size - 1 <= image:
        return out * size
    starts = np.arange(out, dtype=np.int64) * stride - low
    if holes == 1:  # the taps that read an element are consecutive
        first, last = -(starts // dilation), (reach - starts) // dilation
        return int(np.clip(np.minimum(last, size - 1) - np.maximum(first, 0) + 1, 0, None).sum())
    places = starts[:, None] + np.arange(size, dtype=np.int64) * dilation
    return int(((places >= 0) & (places <= reach) & (places % holes == 0)).sum())
