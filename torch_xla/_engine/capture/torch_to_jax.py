"""Torch functions and modules as jax functions, for jax.jit, jax.grad and other transformations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import capture_function, jax_function, traced_function
from torch_xla._engine.capture.capture_function import CapturedFunction


def torch_function_as_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """See torch_xla.interop.torch_function_as_jax."""
    name = jax_function.function_name(function)
    what = f"torch_function_as_jax: {name}"

    def called(*args: Any, seed: Any = None, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray))]
        arrays = [jnp.asarray(leaves[i]) for i in indices]

        def flat(*tensors: torch.Tensor) -> Any:
            full = list(leaves)
            for index, tensor in zip(indices, tensors, strict=True):
                full[index] = tensor
            positional, named = jax.tree.unflatten(tree, full)
            return function(*positional, **named)

        recorded = _record(what, flat, arrays)
        if recorded.random and seed is None:
            raise ValueError(f"{what} draws random numbers, but jax has no generator state: pass seed=, an integer")
        results = _differentiable(recorded)(_seed(seed), *arrays)
        return jax.tree.unflatten(recorded.tree, [r.astype(jax.dtypes.canonicalize_dtype(r.dtype)) for r in results])

    called.__name__ = name
    return called


def _seed(seed: Any) -> Any:
    return jnp.asarray(0 if seed is None else seed)


def _record(what: str, flat: Callable[..., Any], arrays: Sequence[jax.Array]) -> CapturedFunction:
    for array in arrays:
        try:
            dtypes.torch_dtype(array.dtype)
        except (KeyError, TypeError) as error:
            raise TypeError(f"{what}: torch has no dtype for {array.dtype}{list(array.shape)}") from error
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    graded = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
    device = int(recorder.bindings().current_device())
    with torch.enable_grad():
        return capture_function.capture_function(what, flat, structs, graded, device)


def _differentiable(recorded: CapturedFunction) -> Callable[..., Sequence[jax.Array]]:
    """Return a jax function of a seed and arrays whose custom VJP is the gradient that torch's autograd recorded."""
    parts, count = recorded.split(), recorded.results

    def forward(seed: jax.Array, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        with recorder.enable_x64(), dtypes.exact_dtypes():
            return list(parts.forward(seed.astype(np.int64) if recorded.random else None, *arrays))

    @jax.custom_vjp
    def run(seed: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
        return forward(seed, arrays)[:count]

    def run_forward(seed: jax.Array, *arrays: jax.Array) -> Any:
        outs = forward(seed, arrays)
        return outs[:count], (outs[count:], arrays, seed)

    def run_backward(saved_values: Any, cotangents: Sequence[Any]) -> Any:
        residuals, arrays, seed = saved_values
        graded_cotangents = [cotangents[i] for i in recorded.graded]
        found: list[Any] = [traced_function.zero_cotangent(a) for a in arrays]
        if recorded.inputs:
            with recorder.enable_x64(), dtypes.exact_dtypes():
                saved = [*(arrays[i] for i in parts.saved_inputs), *residuals]
                outs = [
                    traced_function.conjugate_if_complex(g)
                    for g in parts.backward(saved, [traced_function.conjugate_if_complex(c) for c in graded_cotangents])
                ]
            for index, gradient in zip(recorded.inputs, outs, strict=True):
                found[index] = gradient
        return (traced_function.zero_cotangent(seed), *found)

    run.defvjp(run_forward, run_backward)
    return run
