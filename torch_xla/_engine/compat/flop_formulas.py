"""torch's formulas for the floating-point operations of an op, by the name of the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_REGISTRY = PrivateApi(
    "torch.utils.flop_counter",
    "flop_registry",
    "the formulas of torch.utils.flop_counter.FlopCounterMode",
    "the report of steps counts the FLOPs of linear layers only",
)
_formulas: dict[str, Callable[..., int]] = {}


def flop_formulas() -> dict[str, Callable[..., int]]:
    """Return the formulas by the qualified name of the op without its overload, such as ``aten::mm``.

    A formula takes the op's arguments with shapes in place of tensors, and ``out_val``, the shape or the list of
    shapes of the results.
    """
    if not _formulas:
        registry: dict[Any, Callable[..., int]] = _REGISTRY.resolve_or_none() or {}
        for packet, formula in registry.items():
            _formulas[str(packet).replace(".", "::", 1)] = formula
    return _formulas
