"""Pure torch functions, recorded once for each signature, and then one node forward and one backward.

signature: structure, constants, shapes, dtypes, who needs a gradient, and torch's state (autocast, default dtype, ...)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.device import precision
from torch_xla._engine.interop import body, calls, gradients, recording
from torch_xla._engine.interop.calls import Call
from torch_xla._engine.interop.gradients import Derivative
from torch_xla._engine.interop.recording import Recorded
from torch_xla._engine.interop.split import keep_random
from torch_xla._engine.lowering import jax_call


@dataclass(frozen=True, slots=True)
class Known:
    """A signature's node: with a gradient, or without."""

    derivative: Derivative | None
    forward: Call
    results: int
    tree: Any
    random: bool

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.forward.number,) if self.derivative is None else self.derivative.numbers


def state() -> Hashable:
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
        self._known: LruCache[Known] = LruCache(limit=lambda: 256)

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
        key = (tree, rest, shapes, state(), more)
        found = self._known.get(key)
        if found is None or (jax_call.forgotten and not self._is_whole(found)):
            found = self._record(args, kwargs)
            self._known.put(key, found)
        return found.tree.unflatten(run(found, tensors))

    def _is_whole(self, known: Known) -> bool:
        return all(map(jax_call.is_known, known.numbers))

    def _record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Known:
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
        return known(what, self._name, recording.record(what, flat, structs, inputs, device), structs)


def known(what: str, name: str, recorded: Recorded, structs: Sequence[jax.ShapeDtypeStruct]) -> Known:
    made = body.of(what, recorded, keep_random)
    full = [body.SEED, *structs] if made.random else list(structs)
    call = calls.build(what, name, made.forward if made.random else made.unseeded, full)
    derivative = None
    if made.backward is not None:
        saved, inputs = (tuple(i + made.random for i in places) for places in (made.saved_inputs, made.inputs))
        derivative = Derivative(what, call, made.results, saved, inputs, made.graded, made.backward, full)
    return Known(derivative, call, made.results, recorded.tree, made.random)


def run(known: Known, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The results of a call, recorded."""
    if known.random:
        with torch.no_grad():
            limits = torch.iinfo(torch.int64)
            seed = torch.empty((), dtype=torch.int64, device=tensors[0].device).random_(limits.min, limits.max)
        tensors = [seed, *tensors]
    if known.derivative is not None:
        return gradients.apply(known.derivative, tensors)
    with torch.no_grad():
        return calls.record(known.forward, tensors)[: known.results]
