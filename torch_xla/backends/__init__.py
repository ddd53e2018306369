"""Numerical settings of XLA programs: matmul precision."""

from __future__ import annotations

from typing import Literal

from torch_xla._engine.device import matmul_precision as _precision

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]


def set_mat_mul_precision(precision: Literal["default", "high", "highest"]) -> None:
    """Set the precision of float32 matrix multiplications and convolutions in programs that are compiled from now on.

    The initial value is ``"highest"``, on TPUs ``"default"``, unless ``torch.set_float32_matmul_precision`` selects a
    lower precision. Programs are cached separately per setting.

    Args:
      precision: ``"highest"``: float32. ``"high"``: TensorFloat32 on GPUs, three bfloat16 passes on TPUs.
        ``"default"``: the fastest, which is TensorFloat32 on GPUs and one bfloat16 pass on TPUs. CPUs always compute
        in float32.

    Raises:
      ValueError: unknown precision.

    Examples:
      >>> import torch_xla
      >>> torch_xla.backends.set_mat_mul_precision("high")
      >>> torch_xla.backends.get_mat_mul_precision()
      'high'
    """
    _precision.set_precision(precision)


def get_mat_mul_precision() -> str:
    """Return the current matmul precision: ``"default"``, ``"high"`` or ``"highest"``."""
    return _precision.precision_name(_precision.current_precision().products)
