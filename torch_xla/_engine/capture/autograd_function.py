"""torch.autograd.Function for jax functions: one node in forward, one in backward.

    DifferentiableCall:  forward(*inputs) -> results, residuals                          one torch_xla::jax_call
                         backward(*saved, *gradients of results) -> gradients of inputs  one torch_xla::jax_call

Residuals and inputs are saved for backward. An input that backward needs is saved itself, not as one more result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jax_core
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import capture_modes, jax_function
from torch_xla._engine.capture.constant_keys import count_bytes
from torch_xla._engine.capture.jax_function import JaxCall
from torch_xla._engine.capture.object_keys import identity

#: ``backward(saved, cotangents) -> gradients`` of the inputs that have one, from the cotangents of the graded results.
Backward = Callable[[Sequence[jax.Array], Sequence[jax.Array]], Sequence[jax.Array]]


@dataclass(eq=False, slots=True)
class DifferentiableCall:
    """A function of tensors that can be recorded together with its gradient."""

    what: str  # name in error messages
    forward: JaxCall  # returns the results, then the residuals
    results: int
    saved_inputs: tuple[int, ...]  # saved before the residuals
    inputs: tuple[int, ...]  # indices of the inputs that have a gradient
    graded: tuple[int, ...]  # indices of the results that have a gradient
    backward: Backward
    structs: Sequence[jax.ShapeDtypeStruct]  # of all inputs
    held: int = 0  # bytes of the constants of ``backward``
    _backwards: dict[tuple[bool, ...], JaxCall] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.forward.number, *(c.number for c in self._backwards.values()))

    @property
    def bytes(self) -> int:
        """Bytes of the constants that forward holds, and an estimate for its backward passes."""
        return self.forward.bytes + 2 * self.held

    def backward_call(self, given: tuple[bool, ...]) -> JaxCall:
        """Return the call that computes the gradients; cotangents that are not ``given`` are zero."""
        found = self._backwards.get(given)
        if found is None:
            found = self._backwards[given] = self._build_backward(given)
        return found

    def _build_backward(self, given: tuple[bool, ...]) -> JaxCall:
        outs = self.forward.function.outs
        count = len(self.saved_inputs) + len(outs) - self.results
        of_results = [_struct(*outs[place]) for place in self.graded]
        present = [struct for struct, is_given in zip(of_results, given, strict=True) if is_given]
        saved = [self.structs[i] for i in self.saved_inputs] + [_struct(*out) for out in outs[self.results :]]

        def backward(*arrays: jax.Array) -> Sequence[jax.Array]:
            cotangents = iter(arrays[count:])
            full = [
                next(cotangents) if is_given else jnp.zeros(struct.shape, struct.dtype)
                for struct, is_given in zip(of_results, given, strict=True)
            ]
            return self.backward(arrays[:count], full)

        return jax_function.trace_and_register(
            self.what, f"{self.forward.function.name}_backward", backward, [*saved, *present]
        )


def _struct(shape: tuple[int, ...], dtype: torch.dtype | None) -> jax.ShapeDtypeStruct:
    assert dtype is not None
    return jax.ShapeDtypeStruct(shape, dtypes.numpy_dtype(dtype))


class _CallFunction(torch.autograd.Function):
    """The autograd node of a DifferentiableCall."""

    @staticmethod
    def forward(ctx: Any, derivative: DifferentiableCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = jax_function.record_call(derivative.forward, tensors)
        count = derivative.results
        results = tuple(outs[:count])
        ctx.derivative = derivative
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*[tensors[i] for i in derivative.saved_inputs], *outs[count:])
        if len(derivative.graded) < count:
            ctx.mark_non_differentiable(*(r for i, r in enumerate(results) if i not in derivative.graded))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        derivative: DifferentiableCall = ctx.derivative
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{derivative.what}: {derivative.forward.function.name} has a gradient of the first order only, and "
                "create_graph=True requests a second-order gradient"
            )
        cotangents = [gradients[i] for i in derivative.graded]
        given = tuple(g is not None for g in cotangents)
        found: list[torch.Tensor | None] = [None] * (1 + len(derivative.structs))
        if any(given):
            call = derivative.backward_call(given)
            outs = jax_function.record_call(call, [*ctx.saved_tensors, *(g for g in cotangents if g is not None)])
            for place, gradient in zip(derivative.inputs, outs, strict=True):
                found[1 + place] = gradient
        return tuple(found)


def apply_call(derivative: DifferentiableCall, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Record a call with its gradient on tensors of the shapes and dtypes that the call was built for."""
    found: Sequence[torch.Tensor] = _CallFunction.apply(derivative, *capture_modes.resolve_captured(tensors))  # type: ignore[no-untyped-call]
    return found


def inputs_requiring_grad(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return the indices of the tensors that require a gradient; empty if grad mode is disabled."""
    if not torch.is_grad_enabled():
        return ()
    return tuple(i for i, t in enumerate(tensors) if t.requires_grad)


# --- jax functions


@dataclass(frozen=True, slots=True)
class _SavedVjp:
    """A jax.vjp function flattened into arrays that are saved between forward and backward."""

    tree: Any
    indices: tuple[int, ...]  # of each array among the saved inputs and residuals
    key_types: tuple[Any, ...]  # the PRNG implementation of an array that is a jax random key, else None


def _is_differentiable(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _conjugate(value: jax.Array) -> jax.Array:
    # torch's gradient of a complex number is the conjugate of jax's.
    return jnp.conj(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value


def make_differentiable(
    what: str,
    name: str,
    function: Callable[..., Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    inputs: tuple[int, ...],
) -> tuple[DifferentiableCall, Any]:
    """Return the DifferentiableCall of a jax function of flat arrays, and the pytree structure of its results.

    The gradient is that of the arrays at ``inputs``.
    """
    seen: dict[str, Any] = {}

    def forward(*arrays: jax.Array) -> Any:
        def of_inputs(*chosen: jax.Array) -> Any:
            full = list(arrays)
            for index, value in zip(inputs, chosen, strict=True):
                full[index] = value
            return function(*full)

        out, vjp = jax.vjp(of_inputs, *(arrays[i] for i in inputs))
        leaves, seen["tree"] = jax.tree.flatten(out)
        parts, seen["vjp"] = jax.tree.flatten(vjp)
        seen["keys"] = tuple(jax.random.key_impl(p) if _is_key(p) else None for p in parts)
        return leaves, [jax.random.key_data(p) if _is_key(p) else p for p in parts]

    forward.__name__ = name
    closed, _ = jax_function.trace(what, forward, structs)
    results = seen["tree"].num_leaves
    outputs, saved_inputs, indices = _partition(closed, results)
    full = jax_core.jaxpr_as_fun(closed)

    def pruned(*arrays: jax.Array) -> list[jax.Array]:
        outs = full(*arrays)
        return [outs[i] for i in outputs]

    call = jax_function.register_call(what, name, pruned, [closed.out_avals[i] for i in outputs], structs, seen["tree"])
    saved = _SavedVjp(seen["vjp"], indices, seen["keys"])
    avals = closed.out_avals[:results]
    graded = tuple(i for i, aval in enumerate(avals) if _is_differentiable(aval.dtype))
    offered = [structs[i] for i in saved_inputs] + [_struct_of(closed.out_avals[i]) for i in outputs[results:]]
    cotangents = [_struct_of(avals[i]) for i in graded]
    backward, held = _traced_backward(what, _vjp_backward(saved, seen["tree"], avals), offered, cotangents)
    return DifferentiableCall(what, call, results, saved_inputs, inputs, graded, backward, structs, held), seen["tree"]


def _is_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def _partition(closed: jax_core.ClosedJaxpr, results: int) -> tuple[list[int], tuple[int, ...], tuple[int, ...]]:
    """Return the outputs to compute, the inputs to save, and the index of each vjp array among the saved values."""
    jaxpr = closed.jaxpr
    inputs = {id(v): i for i, v in enumerate(jaxpr.invars)}
    residuals = jaxpr.outvars[results:]
    saved_inputs = sorted({inputs[id(v)] for v in residuals if id(v) in inputs})
    outputs, index_of, indices = list(range(results)), {}, []
    for position, var in enumerate(residuals, results):
        if id(var) in inputs:
            indices.append(saved_inputs.index(inputs[id(var)]))
            continue
        if id(var) not in index_of:
            index_of[id(var)] = len(saved_inputs) + len(outputs) - results
            outputs.append(position)
        indices.append(index_of[id(var)])
    return outputs, tuple(saved_inputs), tuple(indices)


def _struct_of(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _traced_backward(
    what: str, backward: Backward, offered: Sequence[jax.ShapeDtypeStruct], cotangents: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Backward, int]:
    """Trace ``backward`` now, and count the bytes of its constants.

    It closes over values of the user, who may change them before the backward pass runs.
    """
    count = len(offered)
    flat = lambda *arrays: list(backward(arrays[:count], arrays[count:]))
    closed, _ = jax_function.trace(what, flat, [*offered, *cotangents])
    run = jax_core.jaxpr_as_fun(closed)
    return (lambda saved, given: run(*saved, *given)), count_bytes(closed)


def _vjp_backward(saved: _SavedVjp, tree: Any, avals: Sequence[Any]) -> Backward:
    def backward(arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> Sequence[jax.Array]:
        parts = [
            arrays[index] if key_type is None else jax.random.wrap_key_data(arrays[index], impl=key_type)
            for index, key_type in zip(saved.indices, saved.key_types, strict=True)
        ]
        given = iter(cotangents)
        full = [
            _conjugate(next(given)) if _is_differentiable(a.dtype) else np.zeros(a.shape, jax.dtypes.float0)
            for a in avals
        ]
        return [_conjugate(g) for g in jax.tree.unflatten(saved.tree, parts)(jax.tree.unflatten(tree, full))]

    return backward


_derivatives: LruCache[tuple[DifferentiableCall, Any]] = LruCache(
    limit=lambda: 2048, weigh=lambda found: found[0].bytes
)


def call_with_gradient(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None, name: str | None = None
) -> Any:
    """Call a jax function on xla tensors, with its gradient if one is needed; see torch_xla.interop.jax_function."""
    signature = jax_function.flatten_arguments("jax_function", args, kwargs)
    inputs = inputs_requiring_grad(signature.tensors)
    if not inputs:
        return jax_function.call_jax(function, args, kwargs, name)
    label = name or jax_function.function_name(function)

    def flat(*arrays: jax.Array) -> Any:
        positional, named = signature.arguments(arrays)
        return function(*positional, **named)

    key: Hashable = (identity(function), label, jax_function.trace_config_key(), signature.key, inputs)
    make = lambda: make_differentiable(
        "jax_function", label, flat, jax_function.shape_structs(signature.tensors), inputs
    )
    derivative, tree = jax_function.get_or_make(_derivatives, key, make, lambda found: found[0].numbers)
    return jax.tree.unflatten(tree, apply_call(derivative, signature.tensors))
