"""Count the floating-point operations of matmuls and convolutions in a jax function, loops included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

#: FLOPs by the name of the operands' dtype.
Flops = dict[str, float]


def count_function(call: Callable[..., Any], arguments: Sequence[jax.ShapeDtypeStruct]) -> Flops:
    """Return the FLOPs of a call of a jax function.

    A ``while`` loop counts as one iteration, as the number of iterations is unknown; ``cond`` as its longest branch.
    """
    return _count(jax.make_jaxpr(call)(*arguments).jaxpr)


def add_flops(total: Flops, other: Flops, times: float = 1.0) -> None:
    """Add ``times`` the counts of ``other`` to ``total``."""
    for dtype, count in other.items():
        total[dtype] = total.get(dtype, 0.0) + times * count


def _count(jaxpr: Any) -> Flops:
    total: Flops = {}
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            add_flops(total, _count_dot(equation))
        elif name == "conv_general_dilated":
            add_flops(total, _count_convolution(equation))
        elif name == "cond":
            branches = [_count(branch.jaxpr) for branch in params["branches"]]
            add_flops(total, max(branches, key=lambda branch: sum(branch.values())))
        elif name == "pallas_call" and params.get("cost_estimate") is not None:
            dtype = str(equation.invars[0].aval.dtype)
            add_flops(total, {dtype: float(params["cost_estimate"].flops)})
        elif name != "pallas_call":
            times = params["length"] if name == "scan" else 1
            for inner in _inner_jaxprs(params.values()):
                add_flops(total, _count(inner), times)
    return total


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner_jaxprs(value)


def _count_dot(equation: Any) -> Flops:
    left = equation.invars[0].aval
    (contracted, _), _ = equation.params["dimension_numbers"]
    depth = math.prod(left.shape[axis] for axis in contracted)
    return {str(left.dtype): 2.0 * equation.outvars[0].aval.size * depth}


def _count_convolution(equation: Any) -> Flops:
    kernel = equation.invars[1].aval
    outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return {str(kernel.dtype): 2.0 * equation.outvars[0].aval.size * kernel.size / max(outputs, 1)}
