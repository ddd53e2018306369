"""Matrix multiplication with 8-bit and 4-bit weights, and a linear layer that uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_xla._engine.platform_kernels import quantized_matmul as quantized_kernel
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import check_on_xla, define_operator, format_tensors

__all__ = ["XlaQuantizedLinear", "quantized_matmul", "quantized_matmul_xla"]

Maybe = torch.Tensor | None


def quantized_matmul_xla(
    x: torch.Tensor, w: torch.Tensor, scaler: torch.Tensor, zero_point: Maybe = None, block_size: int = -1,
    int4_weight: bool = False, quantize_activation: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute ``x @ (w * scaler - zero_point)`` on xla; differentiable with respect to x.

    Args:
      x: [..., inputs], of a floating dtype.
      w: int8 [outputs, inputs]; with a ``block_size`` [inputs / block_size, block_size, outputs].
      scaler: [outputs]; with a block size [inputs / block_size, outputs].
      zero_point: shape of scaler, or None; it is subtracted after w is scaled.
      block_size: number of inputs that share a scaler per output; -1: all.
      int4_weight: w has 4-bit values, in int8 tensors.
      quantize_activation: round each row of x to 8 bits first, and multiply integers. Not supported with a block size;
        there is no gradient.

    Returns:
      [..., outputs], in the dtype of x.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    check_on_xla("quantized_matmul", x=x, w=w, scaler=scaler, zero_point=zero_point)
    return _op(x, w, scaler, zero_point, block_size, int4_weight, quantize_activation)  # type: ignore[no-any-return]


def quantized_matmul(
    x: torch.Tensor, w: torch.Tensor, scaler: torch.Tensor, zero_point: Maybe = None, block_size: int = -1,
    int4_weight: bool = False, quantize_activation: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute quantized_matmul_xla with torch operations, on any device; for the CPU and as a reference.

    Args:
      x, w, scaler, zero_point, block_size, int4_weight, quantize_activation: see quantized_matmul_xla.
    """
    _check(x, w, scaler, zero_point, block_size, int4_weight, quantize_activation)
    values = ((w & 15) ^ 8) - 8 if int4_weight else w
    if quantize_activation:
        step = x.float().abs().amax(-1, keepdim=True) / 127
        rounded = (x.float() / step.where(step != 0, 1)).round()
        out = rounded @ values.float().t() * step * scaler.float()
        if zero_point is not None:
            out = out - x.float().sum(-1, keepdim=True) * zero_point.float()
    else:
        out = x.float() @ _dequantize(values, scaler, zero_point, block_size)
    return out.to(x.dtype)


def _dequantize(w: torch.Tensor, scaler: torch.Tensor, zero_point: Maybe, block_size: int) -> torch.Tensor:
    """Return the weight as float32 [inputs, outputs]."""
    if block_size > 0:
        found = w.float() * scaler.float()[:, None]
        return (found if zero_point is None else found - zero_point.float()[:, None]).flatten(0, 1)
    found = w.float() * scaler.float()[:, None]
    return (found if zero_point is None else found - zero_point.float()[:, None]).t()


def _check(
    x: torch.Tensor, w: torch.Tensor, scaler: torch.Tensor, zero_point: Maybe, block_size: int, int4: bool,
    quantize: bool,
) -> None:  # fmt: skip
    if w.dtype != torch.int8 or not x.dtype.is_floating_point:
        raise TypeError(f"quantized_matmul: x must be of a floating dtype, and w of int8, got {format_tensors(x, w)}")
    inputs = x.shape[-1] if x.dim() else 0
    if block_size > 0:
        if quantize:
            raise ValueError("quantized_matmul: quantize_activation is not supported with block_size")
        blocks = inputs // block_size if inputs % block_size == 0 else -1
        if w.dim() != 3 or tuple(w.shape[:2]) != (blocks, block_size):
            raise ValueError(
                f"quantized_matmul: w must be [inputs / block_size, block_size, outputs] for x [..., inputs] and "
                f"block_size={block_size}, got {format_tensors(x, w)}"
            )
        scales: tuple[int, ...] = (w.shape[0], w.shape[2])
    else:
        if w.dim() != 2 or x.dim() == 0 or w.shape[1] != inputs:
            raise ValueError(
                f"quantized_matmul: w must be [outputs, inputs] for x [..., inputs], got {format_tensors(x, w)}"
            )
        scales = (w.shape[0],)
    for name, tensor in (("scaler", scaler), ("zero_point", zero_point)):
        if tensor is not None and tuple(tensor.shape) != scales:
            raise ValueError(
                f"quantized_matmul: {name} must be {list(scales)} for w {format_tensors(w)}, "
                f"got {format_tensors(tensor)}"
            )


def _run(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero_point: Maybe = None, block_size: int | None = -1,
    int4_weight: bool | None = False, quantize_activation: bool | None = False,
) -> Any:  # fmt: skip
    size = -1 if block_size is None else block_size
    _check(x, w, scale, zero_point, size, bool(int4_weight), bool(quantize_activation))
    options = size, bool(int4_weight), bool(quantize_activation)
    return operators.call("quantized_matmul", quantized_kernel.matmul, x, w, scale, zero_point, *options)


def _fake(x: torch.Tensor, w: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[-1] if w.dim() == 3 else w.shape[0]))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, w, scale, zero_point, ctx.block_size, ctx.int4, ctx.rounds = inputs
    ctx.save_for_backward(w, scale, zero_point)
    ctx.dtype = x.dtype


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    if ctx.rounds:
        raise RuntimeError("quantized_matmul has no gradient with quantize_activation=True: rounding has none")
    w, scale, zero_point = ctx.saved_tensors
    values = ((w & 15) ^ 8) - 8 if ctx.int4 else w
    size = -1 if ctx.block_size is None else ctx.block_size
    found = grad.float() @ _dequantize(values, scale, zero_point, size).t()
    return found.to(ctx.dtype), None, None, None, None, None, None


_op = define_operator(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? block_size=-1, "
    "bool? int4_weight=False, bool? quantize_activation=False) -> Tensor",
    _run,
    _fake,
    "xla",
    (_keep, _gradient),
)


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias, with quantized weights, on xla or the CPU: see quantized_matmul_xla.

    Args:
      input_dim, output_dim: sizes of the last dimension of inputs and outputs.
      is_symmetric: whether the weights have no zero points.
      block_size: number of input elements that share a scale; -1: all of an output's.
      int4_weight: whether the weights have 4 bits.
      quantize_activation: whether to quantize the inputs to int8.
    """

    def __init__(
        self, input_dim: int, output_dim: int, is_symmetric: bool = False, block_size: int = -1,
        int4_weight: bool = False, quantize_activation: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if block_size > 0 and input_dim % block_size:
            raise ValueError(f"XlaQuantizedLinear: block_size={block_size} does not divide input_dim={input_dim}")
        self.input_dim, self.output_dim, self.is_symmetric = input_dim, output_dim, is_symmetric
        self.block_size, self.int4_weight, self.quantize_activation = block_size, int4_weight, quantize_activation
        blocks = input_dim // block_size if block_size > 0 else 0
        shape = (blocks, block_size, output_dim) if blocks else (output_dim, input_dim)
        scales = (blocks, output_dim) if blocks else (output_dim,)
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(scales))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(scales))

    def load_quantized_weight(
        self, weight: torch.Tensor, weight_scaler: torch.Tensor, zero_point: Maybe = None
    ) -> None:
        """Load weights into the buffers. Raises ValueError or TypeError if their shapes or dtypes do not match.

        Args:
          weight: the quantized weights.
          weight_scaler: their scales.
          zero_point: their zero points; None if they are symmetric.
        """
        if (zero_point is None) != self.is_symmetric:
            raise ValueError(
                f"XlaQuantizedLinear: a layer with is_symmetric={self.is_symmetric} "
                + ("takes no zero_point" if self.is_symmetric else "requires a zero_point")
            )
        probe = torch.empty(1, self.input_dim, device="meta")
        options = self.block_size, self.int4_weight, self.quantize_activation
        _check(probe, weight, weight_scaler, zero_point, *options)
        self.weight, self.weight_scaler, self.zero_point = weight, weight_scaler, zero_point

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., output_dim].

        Args:
          x: [..., input_dim].
        """
        multiply = quantized_matmul_xla if x.device.type == "xla" else quantized_matmul
        options = self.block_size, self.int4_weight, self.quantize_activation
        return multiply(x, self.weight, self.weight_scaler, self.zero_point, *options)
