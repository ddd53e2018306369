"""Calls a lowering rule and checks its results against the op's output specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert as convert_to
from torch_xla._engine.lowering.registry import LoweringRuleContext, Rule, TensorSpec


class LoweringError(RuntimeError):
    """Raised when a rule fails or violates its output spec: a bug in torch_xla, never in the user's program."""

    node: int | None = None  # index of the graph node, if known


def apply_rule(
    rule: Rule, args: Sequence[Any], outs: Sequence[TensorSpec], context: LoweringRuleContext, convert: bool = False
) -> list[jax.Array | None]:
    """Call ``rule`` and return its flattened results.

    Args:
      outs: the output spec of each result; dtype None marks an undefined result.
      convert: convert the results to the dtypes of ``outs``. Set for in-place ops, where ``float_tensor.add_(double)``
        rounds the result (``int_tensor.mul_(1.5)`` has raised when it was recorded). Results are also converted if the
        device stores a dtype as a narrower one, because a rule may compute in a wider dtype.

    Raises:
      LoweringError: a result does not match its output spec.
    """
    result = rule.function(context, *args) if rule.ctx else rule.function(*args)
    flat = _flatten(result)
    if len(flat) != len(outs):
        raise LoweringError(f"{rule.name}: the lowering returns {len(flat)} results, torch declares {len(outs)}")
    if convert or dtypes.has_narrow_storage():
        pairs = zip(flat, outs, strict=True)
        flat = [None if v is None or d is None else convert_to(v, d) for v, (_, d) in pairs]
    for i, (value, (shape, dtype)) in enumerate(zip(flat, outs, strict=True)):
        if value is not None and dtype is not None:
            _check(rule.name, i, value, shape, dtypes.storage_numpy_dtype(dtype))
    return flat


def _flatten(result: Any) -> list[jax.Array | None]:
    if isinstance(result, (tuple, list)):
        return [value for item in result for value in _flatten(item)]
    return [result]


def _check(name: str, index: int, value: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if tuple(value.shape) != tuple(shape) or np.dtype(value.dtype) != dtype:
        raise LoweringError(
            f"{name}: result {index} of the lowering is {np.dtype(value.dtype)}{list(value.shape)}, "
            f"torch declares {dtype}{list(shape)}; this is a bug in torch_xla's rule for {name}"
        )
