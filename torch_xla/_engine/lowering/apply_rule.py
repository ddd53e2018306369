"""Calls one rule and holds its result against what torch promised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.cast import convert as convert_to
from torch_xla._engine.lowering.registry import LoweringRuleContext, Promise, Rule


class LoweringError(RuntimeError):
    """A rule failed, or broke the recorder's promise: a bug of torch_xla, never of the user's program."""

    node: int | None = None  # which node of the graph, where that is known


def apply_rule(
    rule: Rule, args: Sequence[Any], outs: Sequence[Promise], context: LoweringRuleContext, convert: bool = False
) -> list[jax.Array | None]:
    """The results of ``rule``, flattened; ``outs`` has one (shape, dtype) for each, dtype None where undefined.

    With ``convert`` (an op in place: ``int_tensor.mul_(1.5)`` was refused, ``float_tensor.add_(double)`` is rounded)
    the result takes the promised dtype; and so it does where the device stores a dtype as a narrower one, since a rule
    may compute in a wider one. Raises LoweringError where a result is not what was promised.
    """
    result = rule.function(context, *args) if rule.ctx else rule.function(*args)
    flat = _flatten(result)
    if len(flat) != len(outs):
        raise LoweringError(f"{rule.name}: the lowering gives {len(flat)} results, torch promises {len(outs)}")
    if convert or dtypes.has_narrow_storage():
        pairs = zip(flat, outs, strict=True)
        flat = [None if v is None or d is None else convert_to(v, d) for v, (_, d) in pairs]
    for i, (value, (shape, dtype)) in enumerate(zip(flat, outs, strict=True)):
        if value is not None and dtype is not None:
            _check(rule.name, i, value, shape, dtypes.storage_numpy_dtype(dtype))
    return flat


def _flatten(result: Any) -> list[jax.Array | None]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _flatten(item)]
    return [result]


def _check(name: str, index: int, value: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if tuple(value.shape) != tuple(shape) or np.dtype(value.dtype) != dtype:
        raise LoweringError(
            f"{name}: result {index} of the lowering is {np.dtype(value.dtype)}{list(value.shape)}, "
            f"torch promises {dtype}{list(shape)}; this is a bug in torch_xla's rule for {name}"
        )
