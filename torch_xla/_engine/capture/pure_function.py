"""Pure torch functions (assume_pure): captured once for each signature; each call is one forward and one backward node.

signature: pytree structure, constants, shapes, dtypes, requires_grad, and the state of torch (autocast, default dtype,
...) and of jax
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import autograd_function, capture_function, capture_modes, jax_function, traced_function
from torch_xla._engine.capture.autograd_function import DifferentiableCall
from torch_xla._engine.capture.capture_function import CapturedFunction
from torch_xla._engine.capture.constant_keys import constant_keys
from torch_xla._engine.capture.jax_function import JaxCall
from torch_xla._engine.capture.joint_graph import save_random_only
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.lowering.rules import jax_call


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The node for one signature of a function, with or without a gradient."""

    derivative: DifferentiableCall | None
    forward: JaxCall
    results: int
    tree: Any
    random: bool
    plan: Any = None  # the recorder's call plan; used if no torch mode is active

    @property
    def numbers(self) -> tuple[int, ...]:
        return (self.forward.number,) if self.derivative is None else self.derivative.numbers

    @property
    def bytes(self) -> int:
        """Bytes of the constants that it holds."""
        # The backward pass of a torch function holds no more constants than forward does.
        return self.forward.bytes * (1 if self.derivative is None else 2)


def capture_state_key() -> Hashable:
    """Return a key of the torch and jax state that a capture depends on."""
    cast = torch.get_autocast_dtype("xla") if torch.is_autocast_enabled("xla") else None
    return (
        torch.is_grad_enabled(),
        cast,
        torch.get_default_dtype(),
        matmul_precision.current_precision(),
        jax_function.trace_config_key(),
    )


_flatten = jax.tree.flatten
_shape, _dtype, _graded = map(operator.attrgetter, ("shape", "dtype", "requires_grad"))


_by_recorded: LruCache[RecordedCall] = LruCache(limit=lambda: 512, weigh=lambda known: known.bytes)


@dataclass(frozen=True, slots=True)
class _LastCall:
    """The previous call; an equal call needs no table lookup."""

    tree: Any
    more: Hashable
    state: Hashable
    known: RecordedCall


class PureFunction:
    """A function whose results depend only on its arguments, without side effects.

    Args:
      what: Name of the API in error messages.
      function: A function of pytrees of xla tensors and constants.
      is_cached: If False, the function runs at each call, and only later stages are cached: functions with equal graphs
        are lowered once.
      hidden: Number of leading arguments that the user did not pass, for error messages.
    """

    def __init__(self, what: str, function: Callable[..., Any], is_cached: bool = True, hidden: int = 0) -> None:
        self._what, self._function, self._is_cached = what, function, is_cached
        self._name = jax_function.function_name(function)
        self._hidden = hidden
        self._known: LruCache[RecordedCall] = LruCache(limit=lambda: 256, weigh=lambda known: known.bytes)
        self._last: _LastCall | None = None

    def __call__(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        more: Hashable = None,
        start: torch.Tensor | None = None,
    ) -> Any:
        """Return the function's results.

        Args:
          more: A key of further state that the captured graph depends on.
          start: Seed of the random numbers, an int64 xla tensor; None draws one from torch's generator.
        """
        leaves, tree = _flatten((args, kwargs))
        now, last = capture_state_key(), self._last
        if last is not None and last.state == now and last.more == more and last.tree == tree:
            outs = _try_plan(last.known, leaves, start)
            if outs is not None:
                return last.known.tree.unflatten(outs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        all_tensors = len(tensors) == len(leaves)
        if all_tensors:
            rest: Hashable = None
        else:
            rest = constant_keys(self._what, leaves, tree, self._hidden)
        shapes = tuple(map(_shape, tensors)), tuple(map(_dtype, tensors)), tuple(map(_graded, tensors))
        key = (tree, rest, shapes, now, more)
        found = self._known.get(key) if self._is_cached else None
        if found is None or (jax_call.forgotten and not self._is_registered(found)):
            found = self._record(args, kwargs)
            self._known.put(key, found)
        if self._is_cached:
            self._last = _LastCall(tree, more, now, found) if all_tensors else None
        return found.tree.unflatten(run_recorded_call(found, tensors, start))

    def _is_registered(self, known: RecordedCall) -> bool:
        return all(map(jax_call.is_registered, known.numbers))

    def _record(self, args: Sequence[Any], kwargs: dict[str, Any]) -> RecordedCall:
        signature = jax_function.flatten_arguments(self._what, args, kwargs)
        if not signature.tensors:
            raise TypeError(f"{self._what}: {self._name} was called without xla tensors; pass at least one")
        structs = jax_function.shape_structs(signature.tensors)
        inputs = autograd_function.inputs_requiring_grad(signature.tensors)

        def flat(*tensors: torch.Tensor) -> Any:
            positional, named = signature.arguments(tensors)
            return self._function(*positional, **named)

        device = signature.tensors[0].device.index
        what = f"{self._what}: {self._name}"
        recorded = capture_function.capture_function(what, flat, structs, inputs, device)
        make = lambda: make_recorded_call(what, self._name, recorded, structs, signature.tensors)
        key = (what, recorded.key, tuple(map(_graded, signature.tensors)))
        found: RecordedCall = jax_function.get_or_make(_by_recorded, key, make, lambda k: k.numbers)
        return found


def make_recorded_call(
    what: str,
    name: str,
    recorded: CapturedFunction,
    structs: Sequence[jax.ShapeDtypeStruct],
    tensors: Sequence[torch.Tensor],
) -> RecordedCall:
    """Build the node for calls with tensors of the shapes and dtypes of ``tensors``."""
    made = traced_function.trace_captured(what, recorded, save_random_only)
    full = [traced_function.SEED, *structs] if made.random else list(structs)
    call = jax_function.trace_and_register(what, name, made.forward if made.random else made.forward_without_seed, full)
    derivative = None
    if made.backward is not None:
        saved, inputs = (tuple(i + made.random for i in places) for places in (made.saved_inputs, made.inputs))
        derivative = DifferentiableCall(what, call, made.results, saved, inputs, made.graded, made.backward, full)
    seeds = [torch.empty((), dtype=torch.int64, device="meta")] if made.random else []
    plan = make_plan(call, derivative, made.results, [*seeds, *tensors])
    return RecordedCall(derivative, call, made.results, recorded.tree, made.random, plan)


class _BackwardOfPlan:
    """Build the backward call of a recorder's plan on first use.

    The plan owns it, and a RecordedCall and autograd nodes own the plan: it lives as long as a call may be recorded by
    the plan.
    """

    def __init__(self, derivative: DifferentiableCall | None) -> None:
        self._derivative = derivative

    def __call__(self, given: tuple[bool, ...]) -> tuple[int, str]:
        assert self._derivative is not None, "a plan without differentiable inputs has no backward pass"
        found = self._derivative.backward_call(given)
        found.note_plan(self)
        return found.number, found.function.name


def make_plan(
    call: JaxCall, derivative: DifferentiableCall | None, results: int, tensors: Sequence[torch.Tensor]
) -> Any:
    """Return the recorder's plan for calls with tensors like these; None if the call has no tensors or no results."""
    if not call.function.outs or not tensors:
        return None
    facts = [(dtypes.TO_CODE[t.dtype], tuple(t.shape), t.requires_grad) for t in tensors]
    graded = [derivative is not None and i in derivative.graded for i in range(results)]

    backward = _BackwardOfPlan(derivative)
    call.note_plan(backward)
    saved, inputs = ([], []) if derivative is None else (list(derivative.saved_inputs), list(derivative.inputs))
    return recorder.bindings().Plan(call.number, call.function.name, results, facts, saved, inputs, graded, backward)


def _try_plan(known: RecordedCall, leaves: list[Any], start: torch.Tensor | None) -> Sequence[torch.Tensor] | None:
    """Record a call by its plan and return the results; None if the plan does not apply."""
    if known.plan is None or jax_call.forgotten or capture_modes.is_recording():
        return None
    if not known.random:
        found: Sequence[torch.Tensor] | None = known.plan.call(leaves)
        return found
    if len(leaves) == 0 or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    if not known.plan.fits(leaves, leading=1):  # check before drawing a seed: the slow path draws one itself
        return None
    return known.plan.call([draw_seed(leaves[0].device) if start is None else start, *leaves])  # type: ignore[no-any-return]


def draw_seed(device: torch.device) -> torch.Tensor:
    """Draw a seed for a function's random numbers; each call returns another one."""
    with torch.no_grad():
        limits = torch.iinfo(torch.int64)
        return torch.empty((), dtype=torch.int64, device=device).random_(limits.min, limits.max)


def run_recorded_call(
    known: RecordedCall, tensors: Sequence[torch.Tensor], start: torch.Tensor | None = None
) -> Sequence[torch.Tensor]:
    """Record a call and return its results; random numbers start from ``start``, or from a seed drawn from torch's."""
    outs = _try_plan(known, list(tensors), start)
    if outs is not None:
        return outs
    if known.random:
        tensors = [draw_seed(tensors[0].device) if start is None else start, *tensors]
    if known.derivative is not None:
        return autograd_function.apply_call(known.derivative, tensors)
    with torch.no_grad():
        return jax_function.record_call(known.forward, tensors)[: known.results]
