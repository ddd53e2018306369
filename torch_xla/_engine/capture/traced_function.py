"""What was recorded, traced: a function and its gradient, with no more handed from one to the other than is used."""

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
    """Functions of flat arrays.

    ``forward(seed, *inputs)`` gives ``results`` results, then residuals, of the shapes in ``residuals``; only a
    ``random`` one uses the seed. ``backward`` takes the inputs at ``saved_inputs`` and the residuals, and the gradients
    of the results at ``graded``; it gives those of the inputs at ``inputs``. None where there is no gradient.
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
        """``forward`` of one that is not random."""
        return self.forward(_ANY, *arrays)


def trace_captured(what: str, recorded: CapturedFunction, keep: Keep) -> TracedFunction:
    """The Body of what was recorded. Raises what jax raises for an operation that cannot be built."""
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
    kept = [i for i, is_used in enumerate(used[count:], results) if is_used]
    saved_inputs = tuple(i for i, is_used in zip(parts.saved_inputs, used[:count], strict=True) if is_used)
    forward, random = _prune_jaxpr(closed, [*range(results), *kept])
    inputs, graded = (recorded.inputs, recorded.graded) if backward is not None else ((), ())
    return TracedFunction(
        forward, results, [outs[i] for i in kept], saved_inputs, inputs, graded, backward, recorded.random and random
    )


def _prune_jaxpr(closed: jax_core.ClosedJaxpr, kept: Sequence[int]) -> tuple[Callable[..., Sequence[jax.Array]], bool]:
    """The function with those of its results, and whether its first input matters for them.

    A function may draw numbers that change nothing: attention does, for a dropout of 0.
    """
    whole = jax_core.jaxpr_as_fun(closed)

    def forward(*arrays: jax.Array) -> Sequence[jax.Array]:
        outs = whole(*arrays)
        return [outs[i] for i in kept]

    jaxpr = closed.jaxpr
    return forward, jax_function.used_inputs(closed, [jaxpr.outvars[i] for i in kept])[0]


def _backward(
    what: str, whole: Backward, offered: Sequence[jax.ShapeDtypeStruct], cotangents: Sequence[jax.ShapeDtypeStruct]
) -> tuple[list[bool], Backward]:
    """Which of the ``offered`` values the gradients really need, and the function of these that computes them."""

    def backward(*arrays: jax.Array) -> list[jax.Array]:
        return list(whole(arrays[: len(offered)], arrays[len(offered) :]))

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
    """``f(seed, *inputs)``, the results, whose gradient by jax is torch's; only a random one needs a seed."""

    @jax.custom_vjp
    def run(seed: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
        return list(made.forward(seed, *arrays)[: made.results])

    def run_forward(seed: jax.Array, *arrays: jax.Array) -> Any:
        outs = made.forward(seed, *arrays)
        return list(outs[: made.results]), (list(outs[made.results :]), arrays, seed)

    def run_backward(kept: Any, cotangents: Sequence[Any]) -> Any:
        residuals, arrays, seed = kept
        found: list[Any] = [zero_cotangent(a) for a in arrays]
        if made.backward is not None:
            saved = [*(arrays[i] for i in made.saved_inputs), *residuals]
            given = [conjugate_if_complex(cotangents[i]) for i in made.graded]
            for place, gradient in zip(made.inputs, made.backward(saved, given), strict=True):
                found[place] = conjugate_if_complex(gradient)
        return (zero_cotangent(seed), *found)

    run.defvjp(run_forward, run_backward)
    return lambda seed, *arrays: run(_ANY if seed is None else seed, *arrays)


def conjugate_if_complex(value: jax.Array) -> jax.Array:
    """torch's gradient of a complex number from jax's, or the other way round."""
    return jnp.conj(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value


def zero_cotangent(array: Any) -> Any:
    """The gradient of what has none, as jax wants it; jax may hand a number on as such."""
    if jnp.issubdtype(jnp.result_type(array), jnp.inexact):
        return jnp.zeros_like(array)
    return np.zeros(jnp.shape(array), jax.dtypes.float0)
