"""Matrix multiplication with int8 weights under the name of upstream's kernel, as plain XLA operations."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._engine.platform_kernels import quantized_matmul
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import check_on_xla, define_operator, format_tensors

Maybe = torch.Tensor | None


def quantized_matmul_int8(
    x: torch.Tensor, w: torch.Tensor, scalar: torch.Tensor, zero_point: Maybe = None, quant_block_size: Any = None,
    quantize_activation: bool = False, batch_block_size: int | None = None, out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute ``x @ (w.T * scalar)`` with the same operations on every platform, which XLA fuses.

    Args:
      x: [batch, inputs], of a floating dtype.
      w: int8 [outputs, inputs].
      scalar: [outputs], the scale of each output.
      zero_point, quant_block_size: must be None, as for upstream's kernel; ``quantized_matmul_xla`` of
        ``torch_xla.experimental.xla_quantized_matmul`` supports them.
      quantize_activation: round each row of x to 8 bits first, and multiply integers.
      batch_block_size, out_block_size, in_block_size: accepted for compatibility; have no effect.

    Returns:
      [batch, outputs], in the dtype of x.

    Raises:
      NotImplementedError: zero_point or quant_block_size is given.
      ValueError, TypeError: shapes or dtypes do not match.
    """
    blocks = batch_block_size, out_block_size, in_block_size
    return _op(x, w, scalar, zero_point, quant_block_size, quantize_activation, *blocks)  # type: ignore[no-any-return]


def _run(
    x: torch.Tensor, w: torch.Tensor, scalar: torch.Tensor, zero_point: Maybe = None, quant_block_size: Any = None,
    quantize_activation: bool = False, *_: int | None,
) -> Any:  # fmt: skip
    what = "quantized_matmul_int8"
    check_on_xla(what, x=x, w=w, scalar=scalar)
    if zero_point is not None or quant_block_size is not None:
        raise NotImplementedError(
            f"{what}: zero_point and quant_block_size are not supported; use "
            "torch_xla.experimental.xla_quantized_matmul.quantized_matmul_xla with zero_point= and block_size="
        )
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1] or scalar.shape != w.shape[:1]:
        raise ValueError(
            f"{what}: x must be [batch, inputs], w [outputs, inputs] and scalar [outputs], "
            f"got {format_tensors(x, w, scalar)}"
        )
    if w.dtype != torch.int8 or not x.dtype.is_floating_point:
        raise TypeError(f"{what}: x must be of a floating dtype and w of int8, got {format_tensors(x, w)}")
    return operators.call(what, quantized_matmul.matmul, x, w, scalar, None, -1, False, quantize_activation)


_op = define_operator(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, Tensor? quant_block_size=None, "
    "bool quantize_activation=False, int? batch_block_size=None, int? out_block_size=None, int? in_block_size=None)"
    " -> Tensor",
    _run,
    lambda x, w, *_: x.new_empty((x.shape[0], w.shape[0])),
    "xla",
)
