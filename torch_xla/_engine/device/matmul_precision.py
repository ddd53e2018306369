"""How exactly float32 matrix products are to be computed: the user's settings, and what holds without any."""

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
    """Decides for products and convolutions alike. Raises ValueError for a name that does not exist."""
    global _chosen
    if value not in _NAMES:
        raise ValueError(f"set_mat_mul_precision: {value!r} is not one of {', '.join(map(repr, _NAMES))}")
    _chosen = _NAMES[value]


def precision_name(value: lax.Precision) -> str:
    """The name that set_precision takes."""
    return next(name for name, precision in _NAMES.items() if precision == value)


#: By platform, what set_precision has chosen, and torch's setting.
_known: dict[tuple[str, lax.Precision | None, str], Precision] = {}
_objects: dict[Precision, Precision] = {}


def current_precision() -> Precision:
    """What a program compiled now should use: one object for each precision there is; starts the backend.

    See ``on``.
    """
    return precision_for_platform(devices.target_platform())


def precision_for_platform(platform: str) -> Precision:
    """What a program that is compiled for devices of ``platform`` (cpu, gpu, tpu) should use.

    set_precision comes first. Without it torch's setting counts where it asks for less than float32; it speaks of
    products only, not of convolutions. The rest is exact, except on TPUs, which are fast at bfloat16 only.
    """
    try:
        text = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to answer after torch.backends.fp32_precision was set
        text = torch.backends.fp32_precision  # type: ignore[attr-defined]  # torch sets it
    found = _known.get((platform, _chosen, text))
    return found if found is not None else _resolve_precision(platform, text)


def _resolve_precision(platform: str, text: str) -> Precision:
    if _chosen is not None:
        products = Precision(_chosen, _chosen)
    else:
        usual = lax.Precision.DEFAULT if platform == "tpu" else lax.Precision.HIGHEST
        asked = _TORCH_NAMES[text]
        products = Precision(usual if asked == lax.Precision.HIGHEST else asked, usual)
    products = _objects.setdefault(products, products)
    return _known.setdefault((platform, _chosen, text), products)
