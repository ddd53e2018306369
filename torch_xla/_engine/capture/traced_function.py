"""Trace a captured function and its gradient with jax, and prune the residuals and saved inputs that are unused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jax_core
import jax.numpy as jnp
import numpy as np

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import jax_function
from torch_xla._engine.capture.autograd_function import Backward
from torch_xla._engine.capture.capture_function import CapturedFunction
from torch_xla._engine.capture.joint_graph import Keep

SEED = jax.ShapeDtypeStruct((), np.int64)
_ANY = np.int64(0)  # a seed that nothing depends on


@dataclass(frozen=True, slots=True, eq=False)
class TracedFunction:
    """Forward and backward as functions of flat arrays.

    ``forward(seed, *inputs)`` returns ``results`` results, then residuals of the shapes in ``residuals``; only a
    ``random`` function uses the seed. ``backward`` takes the inputs at ``saved_inputs``, the residuals, and the
    gradients of the results at ``graded``; it returns the gradients of the inputs at ``inputs``. It is None if there is
    no gradient.
    """

    forward: Callable[..., Sequence[jax.Array]]
    results: int
    residuals: Sequence[jax.ShapeDtypeStruct]
    saved_inputs: tuple[int, ...]
    inputs: tuple[int, ...]
    graded: tuple[int, ...]
    backward: Backward | None
    random: bool

    def forward_without_seed(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """Call ``forward`` of a function that is not random."""
        return self.forward(_ANY, *arrays)


def trace_captured(what: str, recorded: CapturedFunction, keep: Keep) -> TracedFunction:
    """Trace a captured function. Raises what jax raises for an operation that cannot be lowered."""
    parts, results = recorded.split(keep), recorded.results
    structs = recorded.structs[: len(recorded.structs) - results]
    closed, _ = jax_function.trace(what, lambda *arrays: list(parts.forward(*arrays)), [SEED, *structs])
    outs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.out_avals]
    count = len(parts.saved_inputs)
    used: list[bool] = [False] * (count + len(outs) - results)
    backward = None
    if recorded.graded and recorded.inputs:
        offered = [*(structs[i] for i in parts.saved_inputs), *outs[results:]]
        used, backward = _backward(what, parts.backward, offered, [outs[i] for i in recorded.graded])
    used_residuals = [i for i, is_used in enumerate(used[count:], results) if is_used]
    saved_inputs = tuple(i for i, is_used in zip(parts.saved_inputs, used[:count], strict=True) if is_used)
    forward, random = _prune_jaxpr(closed, [*range(results), *used_residuals])
    inputs, graded = (recorded.inputs, recorded.graded) if backward is not None else ((), ())
    return TracedFunction(
        forward,
        results,
        [outs[i] for i in used_residuals],
        saved_inputs,
        inputs,
        graded,
        backward,
        recorded.random and random,
    )


def _prune_jaxpr(
    closed: jax_core.ClosedJaxpr, outputs: Sequence[int]
) -> tuple[Callable[..., Sequence[jax.Array]], bool]:
    """Return the function restricted to the given outputs, and whether these depend on its first input, the seed.

    A function may draw numbers that its results do not depend on: attention with a dropout of 0 does.
    """
    full = jax_core.jaxpr_as_fun(closed)

    def forward(*arrays: jax.Array) -> Sequence[jax.Array]:
        outs = full(*arrays)
        return [outs[i] for i in outputs]

    jaxpr = closed.jaxpr
    return forward, jax_function.used_inputs(closed, [jaxpr.outvars[i] for i in outputs])[0]


def _backward(
    what: str, untraced: Backward, offered: Sequence[jax.ShapeDtypeStruct], cotangents: Sequence[jax.ShapeDtypeStruct]
) -> tuple[list[bool], Backward]:
    """Return which of the ``offered`` values the gradients depend on, and the backward function of these."""

    def backward(*arrays: jax.Array) -> list[jax.Array]:
        return list(untraced(arrays[: len(offered)], arrays[len(offered) :]))

    closed, _ = jax_function.trace(what, backward, [*offered, *cotangents])
    used = jax_function.used_inputs(closed)[: len(offered)]
    traced = jax_core.jaxpr_as_fun(closed)

    def pruned(saved: Sequence[jax.Array], given: Sequence[jax.Array]) -> Sequence[jax.Array]:
        rest = iter(saved)
        with recorder.enable_x64(), dtypes.exact_dtypes():
            full = [
                next(rest) if is_used else jnp.zeros(s.shape, s.dtype) for s, is_used in zip(offered, used, strict=True)
            ]
            found: Sequence[jax.Array] = traced(*full, *given)
        return found

    return used, pruned


def as_custom_vjp(made: TracedFunction) -> Callable[..., Sequence[jax.Array]]:
    """Return ``f(seed, *inputs)`` with torch's gradient as custom VJP; only a random function needs a seed."""

    @jax.custom_vjp
    def run(seed: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
        return list(made.forward(seed, *arrays)[: made.results])

    def run_forward(seed: jax.Array, *arrays: jax.Array) -> Any:
        outs = made.forward(seed, *arrays)
        return list(outs[: made.results]), (list(outs[made.results :]), arrays, seed)

    def run_backward(saved_values: Any, cotangents: Sequence[Any]) -> Any:
        residuals, arrays, seed = saved_values
        found: list[Any] = [zero_cotangent(a) for a in arrays]
        if made.backward is not None:
            saved = [*(arrays[i] for i in made.saved_inputs), *residuals]
            given = [conjugate_if_complex(cotangents[i]) for i in made.graded]
            for index, gradient in zip(made.inputs, made.backward(saved, given), strict=True):
                found[index] = conjugate_if_complex(gradient)
        return (zero_cotangent(seed), *found)

    run.defvjp(run_forward, run_backward)
    return lambda seed, *arrays: run(_ANY if seed is None else seed, *arrays)


def conjugate_if_complex(value: jax.Array) -> jax.Array:
    """Convert a gradient of a complex number from jax's convention to torch's, or back."""
    return jnp.conj(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value


def zero_cotangent(array: Any) -> Any:
    """Return the zero cotangent that jax expects for an array, or for a Python number."""
    if jnp.issubdtype(jnp.result_type(array), jnp.inexact):
        return jnp.zeros_like(array)
    return np.zeros(jnp.shape(array), jax.dtypes.float0)
