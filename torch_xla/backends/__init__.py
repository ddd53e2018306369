"""Settings of how XLA computes."""

from __future__ import annotations

from typing import Literal

from torch_xla._engine.device import matmul_precision as _precision

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]


def set_mat_mul_precision(precision: Literal["default", "high", "highest"]) -> None:
    """Sets how exactly float32 matrix products and convolutions are computed, for programs compiled from now on.

    ``"highest"``: in float32. ``"high"``: in TensorFloat32 on GPUs, in three bfloat16 passes on TPUs. ``"default"``:
    the fastest, which is TensorFloat32 on GPUs and one bfloat16 pass on TPUs. CPUs always compute in float32.
    Without a call it is ``"highest"``, on TPUs ``"default"``, unless ``torch.set_float32_matmul_precision`` asks for
    less. Each setting compiles programs of its own. Raises ValueError for another name.
    """
    _precision.set_precision(precision)


def get_mat_mul_precision() -> str:
    """The precision of float32 matrix products now: ``"default"``, ``"high"`` or ``"highest"``."""
    return _precision.precision_name(_precision.current_precision().products)
