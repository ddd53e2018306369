"""The precision of float32 matmuls and convolutions: user settings and platform defaults."""

from __future__ import annotations

import torch
from jax import lax

from torch_xla._engine.device import devices
from torch_xla._engine.lowering.rules.matmul import Precision

_NAMES = {"default": lax.Precision.DEFAULT, "high": lax.Precision.HIGH, "highest": lax.Precision.HIGHEST}

#: torch.set_float32_matmul_precision, and the newer torch.backends.fp32_precision; "none" is the latter's default.
_TORCH_NAMES = {
    "highest": lax.Precision.HIGHEST, "high": lax.Precision.HIGH, "medium": lax.Precision.DEFAULT,
    "none": lax.Precision.HIGHEST, "ieee": lax.Precision.HIGHEST, "tf32": lax.Precision.HIGH,
    "bf16": lax.Precision.DEFAULT,
}  # fmt: skip

_chosen: lax.Precision | None = None  # None until set_precision


def set_precision(value: str) -> None:
    """Set the precision of matmuls and convolutions. Raises ValueError for an unknown name."""
    global _chosen
    if value not in _NAMES:
        raise ValueError(f"set_mat_mul_precision: {value!r} is not one of {', '.join(map(repr, _NAMES))}")
    _chosen = _NAMES[value]


def precision_name(value: lax.Precision) -> str:
    """Return the name of a precision that set_precision accepts."""
    return next(name for name, precision in _NAMES.items() if precision == value)


#: (platform, precision from set_precision, torch's setting) -> Precision.
_known: dict[tuple[str, lax.Precision | None, str], Precision] = {}
_objects: dict[Precision, Precision] = {}


def current_precision() -> Precision:
    """Return the precision of programs compiled now, as one object per distinct precision. Starts the backend.

    See ``precision_for_platform``.
    """
    return precision_for_platform(devices.target_platform())


def precision_for_platform(platform: str) -> Precision:
    """Return the precision of programs for devices of ``platform`` (cpu, gpu, tpu).

    set_precision takes precedence. Without it, torch's setting applies if it requests less than float32; it affects
    only matmuls, not convolutions. The default is full float32, except on TPUs, which are fast only at bfloat16.
    """
    try:
        text = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch raises after torch.backends.fp32_precision was set
        text = torch.backends.fp32_precision  # type: ignore[attr-defined]  # torch sets it
    found = _known.get((platform, _chosen, text))
    return found if found is not None else _resolve_precision(platform, text)


def _resolve_precision(platform: str, text: str) -> Precision:
    if _chosen is not None:
        products = Precision(_chosen, _chosen)
    else:
        usual = lax.Precision.DEFAULT if platform == "tpu" else lax.Precision.HIGHEST
        requested = _TORCH_NAMES[text]
        products = Precision(usual if requested == lax.Precision.HIGHEST else requested, usual)
    products = _objects.setdefault(products, products)
    return _known.setdefault((platform, _chosen, text), products)
