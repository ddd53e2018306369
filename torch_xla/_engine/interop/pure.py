"""Pure torch functions, recorded once for each signature, and then one node forward and one backward.

signature: structure, constants, shapes, dtypes, who needs a gradient, and torch's state (autocast, default dtype, ...)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jax_core
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.device import precision
from torch_xla._engine.interop import calls, gradients, recording
from torch_xla._engine.interop.calls import Call
from torch_xla._engine.interop.gradients import Backward, Derivative
from torch_xla._engine.interop.recording import Recorded
from torch_xla._engine.lowering import jax_call

_SEED = jax.ShapeDtypeStruct((), np.int64)


@dataclass(frozen=True, slots=True)
class _Known:
    """A signature's node: with a gradient, or without."""

    derivative: Derivative | None
    forward: Call
    results: int
    tree: Any
    random: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.forward.number,) if self.derivative is None else self.derivative.numbers


def _state() -> Hashable:
    """What of torch's state decides what a function records."""
    cast = torch.get_autocast_dtype("xla") if torch.is_autocast_enabled("xla") else None
    return torch.is_grad_enabled(), cast, torch.get_default_dtype(), precision.current()


_flatten = jax.tree.flatten
_shape, _dtype, _graded = map(operator.attrgetter, ("shape", "dtype", "requires_grad"))


class Pure:
    """A function that depends on nothing but its arguments, and does nothing but give results.

    Args:
      what: how errors name it.
      function: of structures of xla tensors and constants.
    """

    def __init__(self, what: str, function: Callable[..., Any]) -> None:
        self._what, self._function = what, function
        self._name = calls.name_of(function)
        self._known: LruCache[_Known] = LruCache(limit=lambda: 256)

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any], more: Hashable = None) -> Any:
        """The function's results. ``more`` is what else decides what it records."""
        leaves, tree = _flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len(tensors) == len(leaves):
            rest: Hashable = None
        else:
            rest = tuple(
                None if isinstance(leaf, torch.Tensor) else calls.constant_key(leaf, self._what) for leaf in leaves
            )
        shapes = tuple(map(_shape, tensors)), tuple(map(_dtype, tensors)), tuple(map(_graded, tensors))
        key = (tree, rest, shapes, _state(), more)
        found = self._known.get(key)
        if found is None or (jax_call.forgotten and not self._is_whole(found)):
            found = self._record(args, kwargs)
            self._known.put(key, found)
        return found.tree.unflatten(_run(found, tensors))

    def _is_whole(self, known: _Known) -> bool:
        return all(map(jax_call.is_known, known.numbers))

    def _record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> _Known:
        signature = calls.take_apart(self._what, args, kwargs)
        if not signature.tensors:
            raise TypeError(
                f"{self._what}: {self._name} was called without xla tensors, and there is nothing to record"
            )
        structs = calls.avals(signature.tensors)
        inputs = gradients.needing(signature.tensors)

        def flat(*tensors: torch.Tensor) -> Any:
            positional, named = signature.arguments(tensors)
            return self._function(*positional, **named)

        device = signature.tensors[0].device.index
        what = f"{self._what}: {self._name}"
        return _known(what, self._name, recording.record(what, flat, structs, inputs, device), structs)


def _known(what: str, name: str, recorded: Recorded, structs: Sequence[jax.ShapeDtypeStruct]) -> _Known:
    kept, saved, backward = _backward(what, recorded, structs)

    def pruned(*arrays: Any) -> Sequence[jax.Array]:
        outs = recorded.parts.forward(*arrays)
        return [*outs[: recorded.results], *(outs[recorded.results + i] for i in kept)]

    seeded = recorded.random and _uses_seed(what, pruned, structs)
    full = [_SEED, *structs] if seeded else list(structs)

    def forward(*arrays: jax.Array) -> Sequence[jax.Array]:
        return pruned(*arrays) if seeded else pruned(_ANY, *arrays)

    call = calls.build(what, name, forward, full)
    derivative = None
    if backward is not None:
        saved, inputs = (tuple(i + seeded for i in places) for places in (saved, recorded.inputs))
        derivative = Derivative(what, call, recorded.results, saved, inputs, recorded.graded, backward, full)
    return _Known(derivative, call, recorded.results, recorded.tree, seeded)


_ANY = np.int64(0)  # a seed that nothing depends on


def _uses_seed(what: str, forward: Callable[..., Sequence[jax.Array]], structs: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Whether the numbers that are drawn matter: attention draws for a dropout of 0, too."""
    closed, _ = calls.trace(what, forward, [_SEED, *structs])
    return calls.used_inputs(closed)[0]


def _backward(
    what: str, recorded: Recorded, structs: Sequence[jax.ShapeDtypeStruct]
) -> tuple[list[int], tuple[int, ...], Backward | None]:
    """Which residuals and which inputs the gradients really need, and the function of these that computes them."""
    parts, results = recorded.parts, recorded.results
    if not (recorded.graded and recorded.inputs):
        return [], (), None
    with recorder.wide_types(), dtypes.exactly():
        outs = jax.eval_shape(lambda *arrays: list(parts.forward(*arrays)), _SEED, *structs)
    offered = [*(structs[i] for i in parts.saved_inputs), *outs[results:]]
    cotangents = [outs[i] for i in recorded.graded]

    def backward(*arrays: jax.Array) -> list[jax.Array]:
        return list(parts.backward(arrays[: len(offered)], arrays[len(offered) :]))

    closed, _ = calls.trace(what, backward, [*offered, *cotangents])
    used = calls.used_inputs(closed)[: len(offered)]
    whole = jax_core.jaxpr_as_fun(closed)

    def pruned(saved: Sequence[jax.Array], given: Sequence[jax.Array]) -> Sequence[jax.Array]:
        rest = iter(saved)
        full = [
            next(rest) if is_used else jnp.zeros(s.shape, s.dtype) for s, is_used in zip(offered, used, strict=True)
        ]
        found: Sequence[jax.Array] = whole(*full, *given)
        return found

    count = len(parts.saved_inputs)
    kept = [i for i, is_used in enumerate(used[count:]) if is_used]
    saved_inputs = tuple(i for i, is_used in zip(parts.saved_inputs, used[:count], strict=True) if is_used)
    return kept, saved_inputs, pruned


def _run(known: _Known, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    if known.random:
        with torch.no_grad():
            limits = torch.iinfo(torch.int64)
            seed = torch.empty((), dtype=torch.int64, device=tensors[0].device).random_(limits.min, limits.max)
        tensors = [seed, *tensors]
    if known.derivative is not None:
        return gradients.apply(known.derivative, tensors)
    with torch.no_grad():
        return calls.record(known.forward, tensors)[: known.results]
