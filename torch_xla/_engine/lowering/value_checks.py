"""Checks of operand values for which torch raises an error: indices out of range, classes, divisors, probabilities.

An XLA program cannot raise. A program with checks returns one more result, int64[5], of which the host makes torch's
error (execution/value_errors.py):

    failure   0: every check passed; else the number of a Failure
    node      the number of the first node of the graph, in recorded order, whose check failed
    dim       the dimension that is indexed, or the position of the value
    size      the size of that dimension
    value     the first invalid element of the operand

A check is one reduction over the operand. Operands that several nodes read with equal limits (a gather and its
gradient) are checked once. Ops that are not in CHECKS are not checked, nor, with auto, large operands.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base.settings import settings
from torch_xla._engine.lowering.dims import normalize_dim
from torch_xla._engine.lowering.registry import Operand, ScalarOperand


class Failure(enum.IntEnum):
    """What a check found; torch's error for it is in execution/value_errors.py."""

    NONE = 0
    INDEX_ERROR = 1
    INDEX_RUNTIME_ERROR = 2
    INDEX_IN_SELF = 3
    FLAT_INDEX = 4
    INDEX_COPY = 5
    BAG_INDEX = 6
    TARGET = 7
    MARGIN_TARGET = 8
    DIVISOR = 9
    PROBABILITY = 10
    PROBABILITY_SUM = 11


#: With auto, larger operands are not checked: a check takes 1.2 ns per element on one core (AMD EPYC), as long as a
#: gather of as many floats. A check of this size takes less than 0.1 ms.
_CHEAP = 1 << 16


@dataclass(frozen=True, slots=True)
class Check:
    """An operand, flattened, none of whose elements may be invalid.

    Attributes:
      is_invalid: the elementwise test.
      key: two checks of one operand with equal keys have the same test.
      dim: the dimension in the message; None: the position of the invalid element.
    """

    failure: Failure
    operand: jax.Array
    is_invalid: Callable[[jax.Array], jax.Array]
    key: Hashable
    dim: int | None = 0
    size: int = 0


def is_enabled(runs_in_process: bool) -> bool:
    """Return whether programs check values (TORCH_XLA_CHECK_INDICES), by whether their device runs in this process."""
    chosen = settings.TORCH_XLA_CHECK_INDICES
    return chosen == "1" or (chosen == "auto" and runs_in_process)


def most_elements() -> int:
    """Return the number of elements up to which an operand is checked. Part of the keys of cached programs."""
    return sys.maxsize if settings.TORCH_XLA_CHECK_INDICES == "1" else _CHEAP


class CheckCollector:
    """Collects the checks of one trace of a graph, during the trace; ``result`` combines them."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[int, Check]] = {}  # by operand and test; also the first node that reads it

    def add(self, node: int, op: str, argument: Callable[[Any], Any], args: Sequence[Any]) -> None:
        """Add the checks of node ``node``; ``argument`` converts its arguments for a rule."""
        find = CHECKS.get(op)
        if find is None:
            return
        for check in find(*map(argument, args)):
            if not 0 < check.operand.size <= most_elements():
                continue
            key = (id(check.operand), check.key)  # the operand lives as long as its check: its id is unique
            if key not in self._found or node < self._found[key][0]:  # nodes are not lowered in recorded order
                self._found[key] = node, check

    def result(self) -> jax.Array | None:
        """Return the row of the first failed node, int64[5], or zeros; None for a graph without checks."""
        if not self._found:
            return None
        row = jnp.zeros(5, np.int64)
        in_order = sorted(self._found.values(), key=lambda item: item[0])  # stable: keeps the order of a node's checks
        for node, check in in_order[::-1]:
            position, value, has_failed = _first_invalid(check)
            dim = position if check.dim is None else check.dim
            failed = [jnp.asarray(n).astype(np.int64) for n in (check.failure, node, dim, check.size, value)]
            row = jnp.where(has_failed, jnp.stack(failed), row)
        return row


def _first_invalid(check: Check) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the position and the value of the first invalid element, and whether there is one."""
    flat = check.operand.reshape(-1)
    positions = jnp.arange(flat.size, dtype=np.int32 if flat.size < 2**31 else np.int64)
    first = jnp.min(jnp.where(check.is_invalid(flat), positions, flat.size))
    value = lax.dynamic_index_in_dim(flat, jnp.minimum(first, flat.size - 1), keepdims=False)
    return first, value, first < flat.size


def _range_check(
    failure: Failure, operand: jax.Array, low: int, size: int, dim: int | None = 0, allowed: int | None = None
) -> Check:
    """Return the check of indices in [low, size), or equal to ``allowed``."""

    def is_invalid(flat: jax.Array) -> jax.Array:
        wide = flat.astype(np.int64) if size > np.iinfo(flat.dtype).max else flat
        found = (wide < low) | (wide >= size)
        return found if allowed is None else found & (flat != allowed)

    return Check(failure, operand, is_invalid, (low, size, allowed), dim, size)


def _embedding(weight: jax.Array, indices: jax.Array, *_: Any) -> Iterator[Check]:
    yield _range_check(Failure.INDEX_IN_SELF, indices, 0, weight.shape[0])


def _embedding_bag(weight: jax.Array, indices: jax.Array, *_: Any) -> Iterator[Check]:
    yield _range_check(Failure.BAG_INDEX, indices, 0, weight.shape[0], dim=None)


def _index(x: jax.Array, indices: Sequence[jax.Array | None], *_: Any) -> Iterator[Check]:
    if any(index is not None and index.dtype in (np.bool_, np.uint8) for index in indices):
        return  # a mask has no values out of range
    given = [(index, x.shape[dim]) for dim, index in enumerate(indices) if index is not None]
    for number, (index, size) in enumerate(given):  # torch calls this number the dimension
        yield _range_check(Failure.INDEX_ERROR, index, -size, size, number)


def _index_put_impl(
    x: jax.Array, indices: Sequence[jax.Array | None], values: Any, add: bool = False, unsafe: bool = False
) -> Iterator[Check]:
    return iter(()) if unsafe else _index(x, indices)  # unsafe: the gradient of an index that was checked


def _along_dim(failure: Failure, wraps: bool = False, vector: Failure | None = None) -> Callable[..., Iterator[Check]]:
    """Return the checks of an index along a dimension. ``wraps``: it may be negative; ``vector``: of a 1-d tensor."""

    def find(x: jax.Array, dim: int, index: jax.Array, *_: Any) -> Iterator[Check]:
        dim = normalize_dim(dim, x.ndim)
        size = x.shape[dim] if x.ndim else 1
        kind = vector if vector is not None and x.ndim <= 1 else failure
        yield _range_check(kind, index, -size if wraps else 0, size, dim)

    return find


def _flat(x: jax.Array, index: jax.Array, *_: Any) -> Iterator[Check]:
    yield _range_check(Failure.FLAT_INDEX, index, -x.size, x.size)


def _nll_loss(x: jax.Array, target: jax.Array, weight: Any, reduction: int, ignore_index: int) -> Iterator[Check]:
    yield _range_check(Failure.TARGET, target, 0, x.shape[1 if x.ndim > 1 else 0], allowed=ignore_index)


def _multi_margin_loss(x: jax.Array, target: jax.Array, *_: Any) -> Iterator[Check]:
    yield _range_check(Failure.MARGIN_TARGET, target, 0, x.shape[-1])


def _is_integer(x: Operand) -> bool:
    if isinstance(x, ScalarOperand):
        return x.kind is int
    return np.issubdtype(x.dtype, np.integer) if isinstance(x, jax.Array) else type(x) is int


def _divide(x: Operand, divisor: Operand, *_: Any) -> Iterator[Check]:
    if _is_integer(x) and _is_integer(divisor):
        value = divisor.value if isinstance(divisor, ScalarOperand) else jnp.asarray(divisor)
        yield Check(Failure.DIVISOR, value, lambda flat: flat == 0, "zero")


def _divide_rounded(x: Operand, divisor: Operand, rounding_mode: str | None) -> Iterator[Check]:
    return iter(()) if rounding_mode is None else _divide(x, divisor)


def _multinomial(p: jax.Array, *_: Any) -> Iterator[Check]:
    yield Check(Failure.PROBABILITY, p, lambda flat: ~((flat >= 0) & jnp.isfinite(flat)), "probability")
    total = jnp.sum(p, -1, dtype=np.promote_types(p.dtype, np.float32))
    yield Check(Failure.PROBABILITY_SUM, total, lambda flat: flat <= 0, "total")


_ELEMENTS = _along_dim(Failure.INDEX_RUNTIME_ERROR)

#: Operator -> the checks of a call, as a function of the arguments of its rule.
CHECKS: dict[str, Callable[..., Iterator[Check]]] = {
    "aten::embedding": _embedding,
    "aten::_embedding_bag": _embedding_bag,
    "aten::_embedding_bag_forward_only": _embedding_bag,
    "aten::index.Tensor": _index,
    "aten::index_put": _index,
    "aten::_index_put_impl": _index_put_impl,
    "aten::take": _flat,
    "aten::put": _flat,
    "aten::gather": _ELEMENTS,
    **dict.fromkeys(("aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce"), _ELEMENTS),
    **dict.fromkeys(("aten::scatter.value_reduce", "aten::scatter_add", "aten::scatter_reduce.two"), _ELEMENTS),
    "aten::index_add": _along_dim(Failure.INDEX_RUNTIME_ERROR, vector=Failure.INDEX_IN_SELF),
    "aten::index_select": _along_dim(Failure.INDEX_IN_SELF),
    "aten::index_reduce": _along_dim(Failure.INDEX_IN_SELF),
    "aten::index_copy": _along_dim(Failure.INDEX_COPY),
    "aten::index_fill.int_Scalar": _along_dim(Failure.INDEX_ERROR, wraps=True),
    "aten::index_fill.int_Tensor": _along_dim(Failure.INDEX_ERROR, wraps=True),
    "aten::nll_loss_forward": _nll_loss,
    "aten::nll_loss2d_forward": _nll_loss,
    "aten::multi_margin_loss": _multi_margin_loss,
    **dict.fromkeys(("aten::floor_divide", "aten::floor_divide.Scalar"), _divide),
    **dict.fromkeys(("aten::fmod.Scalar", "aten::fmod.Tensor"), _divide),
    **dict.fromkeys(("aten::remainder.Scalar", "aten::remainder.Tensor", "aten::remainder.Scalar_Tensor"), _divide),
    "aten::div.Scalar_mode": _divide_rounded,
    "aten::div.Tensor_mode": _divide_rounded,
    "aten::multinomial": _multinomial,
}
