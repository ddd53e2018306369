"""torch control flow operators on xla tensors: each call is one graph node, lowered to jax control flow.

    cond              lax.cond
    while_loop        lax.while_loop, which has no gradient
    associative_scan  lax.associative_scan
    map, scan         lax.scan (scan.py)

The branch functions are captured and may use xla tensors from outside. jax differentiates the control flow; torch's
autograd has differentiated the branch functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import (
    autograd_function,
    capture_function,
    capture_modes,
    jax_function,
    pure_function,
    pytree,
    scan,
    traced_function,
)
from torch_xla._engine.capture.capture_function import CapturedFunction
from torch_xla._engine.capture.joint_graph import save_all
from torch_xla._engine.capture.pytree import TensorTree


@dataclass(frozen=True, slots=True)
class _CapturedBranch:
    """A branch function captured for the arguments of a call, and the tensors that it uses from outside."""

    recorded: CapturedFunction
    structure: TensorTree
    captured: list[torch.Tensor]

    @property
    def results(self) -> Sequence[jax.ShapeDtypeStruct]:
        return self.recorded.structs[len(self.recorded.structs) - self.recorded.results :]


def _record(
    what: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    structs: Sequence[Any],
    device: int,
    writable: int = 0,
) -> _CapturedBranch:
    """Capture a branch function; tensors among ``args`` are replaced by placeholders of ``structs``.

    The function may write to the first ``writable`` of them in place.
    """
    seen: list[TensorTree] = []
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        full = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        leaves, structure = pytree.flatten_tensors(what, function(*full))
        seen.append(structure)
        return leaves

    needing = tuple(i for i, place in enumerate(places) if torch.is_grad_enabled() and args[place].requires_grad)
    captured: list[torch.Tensor] = []
    recorded = capture_function.capture_function(what, flat, structs, needing, device, captured, writable)
    return _CapturedBranch(recorded, seen[-1], captured)


def _tensors(what: str, values: Sequence[Any]) -> list[torch.Tensor]:
    found = [v for v in values if isinstance(v, torch.Tensor)]
    for tensor in found:
        if tensor.device.type != "xla":
            raise RuntimeError(
                f"{what}: expected xla tensors, got {tensor.dtype}{list(tensor.shape)} on {tensor.device}; "
                'move it with .to("xla")'
            )
    return found


_found: LruCache[Any] = LruCache(limit=lambda: 512, weigh=lambda found: found.bytes)  # JaxCall and DifferentiableCall


def record_function(
    what: str,
    function: Callable[..., Sequence[jax.Array]],
    tensors: Sequence[torch.Tensor],
    is_random: bool,
    key: Hashable,
) -> list[torch.Tensor]:
    """Record ``function(seed, *arrays)``, with jax's gradient if one is needed."""
    name = what.partition(":")[0]
    given = [pure_function.draw_seed(tensors[0].device), *tensors] if is_random else list(tensors)
    full = (lambda *arrays: list(function(*arrays))) if is_random else (lambda *arrays: list(function(None, *arrays)))
    inputs = autograd_function.inputs_requiring_grad(given)
    facts = tuple((t.dtype, t.shape) for t in given)
    structs = jax_function.shape_structs(given)
    if not inputs:
        make: Callable[[], Any] = lambda: jax_function.trace_and_register(what, name, full, structs)
        call = jax_function.get_or_make(_found, (key, facts), make, lambda c: (c.number,))
        with torch.no_grad():
            return jax_function.record_call(call, given)
    make = lambda: autograd_function.make_differentiable(what, name, full, structs, inputs)[0]
    return list(
        autograd_function.apply_call(
            jax_function.get_or_make(_found, (key, facts, inputs), make, lambda d: d.numbers), given
        )
    )


def cond(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()
) -> Any:
    """Compute ``true_fn(*operands) if pred else false_fn(*operands)`` on the device.

    Raises:
      RuntimeError: The branches return different structures, shapes or dtypes, or ``pred`` does not have one element.
    """
    what = "cond"
    if pred.numel() != 1:
        raise RuntimeError(f"cond: expected pred to be a tensor with one element, got {pred.dtype}{list(pred.shape)}")
    tensors = _tensors(what, (pred, *operands))
    structs, device = jax_function.shape_structs(tensors[1:]), pred.device.index
    yes, no = (_record(what, f, operands, structs, device) for f in (true_fn, false_fn))
    if yes.structure != no.structure or [*yes.results] != [*no.results]:
        raise RuntimeError(
            "cond: both branches must return the same structure, shapes and dtypes; true_fn returns "
            f"{pytree.format_structs(yes.results)}, false_fn returns {pytree.format_structs(no.results)}"
        )
    makers = _BranchFunctions(what, yes, no)
    count = len(operands_of := tensors[1:])

    def chosen(seed: Any, pred: jax.Array, *arrays: jax.Array) -> Sequence[jax.Array]:
        shared, (first, second) = arrays[:count], _split(arrays[count:], yes, no)
        run_yes, run_no = makers.functions()
        return lax.cond(  # type: ignore[no-any-return]
            pred.reshape(()).astype(bool),
            lambda: run_yes(seed, *shared, *first),
            lambda: run_no(seed, *shared, *second),
        )

    given = [pred, *operands_of, *yes.captured, *no.captured]
    return yes.structure.build(record_function(what, chosen, given, makers.random, makers.key))


class _BranchFunctions:
    """The branch functions of a call as jax functions of a seed and arrays, with torch's gradient as custom VJP."""

    def __init__(self, what: str, *functions: _CapturedBranch) -> None:
        self._what, self._functions = what, functions
        self.key = (what, *(f.recorded.key for f in functions))
        self.random = any(f.recorded.random for f in functions)

    def functions(self) -> list[Callable[..., Sequence[jax.Array]]]:
        """Build the functions. Only for a call that is not cached."""
        return [
            traced_function.as_custom_vjp(traced_function.trace_captured(self._what, f.recorded, save_all))
            for f in self._functions
        ]


def _split(arrays: Sequence[jax.Array], *functions: _CapturedBranch) -> list[Sequence[jax.Array]]:
    found: list[Sequence[jax.Array]] = []
    rest = list(arrays)
    for function in functions:
        found.append(rest[: len(function.captured)])
        rest = rest[len(function.captured) :]
    return found


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    """Run ``while cond_fn(*carried, *additional): carried = body_fn(*carried, *additional)`` on the device.

    The carried values are tensors of constant shape and dtype. ``body_fn`` may write to them in place, which changes
    neither the tensors of the caller nor those that ``cond_fn`` sees before the step has ended. There is no gradient:
    XLA does not know how many values a backward pass would have to save.

    Raises:
      RuntimeError: A carried value changes its shape or dtype, or a backward pass needs a gradient.
    """
    what = "while_loop"
    tensors = _tensors(what, (*carried, *additional))
    count = sum(isinstance(c, torch.Tensor) for c in carried)
    if count < len(carried) or not carried:
        raise RuntimeError("while_loop: carried values must be tensors on xla; convert numbers to tensors")
    structs, device = jax_function.shape_structs(tensors), tensors[0].device.index
    needing = any(t.requires_grad for t in tensors) and torch.is_grad_enabled()
    with torch.no_grad():
        args = [*carried, *additional]
        going = _record(what, cond_fn, args, structs, device)
        step = _record(what, body_fn, args, structs, device, writable=count)
    _check_loop(structs[:count], going, step)
    makers = _BranchFunctions(what, going, step)

    def looped(seed: Any, *arrays: jax.Array) -> Sequence[jax.Array]:
        shared, (first, second) = arrays[count : len(tensors)], _split(arrays[len(tensors) :], going, step)
        run_going, run_step = makers.functions()
        seed_of = (lambda number: None) if seed is None else functools.partial(scan.step_seed, seed)

        def is_going(state: Any) -> jax.Array:
            number, carry = state
            return run_going(seed_of(2 * number), *carry, *shared, *first)[0].reshape(()).astype(bool)

        def stepped(state: Any) -> Any:
            number, carry = state
            return number + 1, tuple(run_step(seed_of(2 * number + 1), *carry, *shared, *second))

        start = jnp.zeros((), np.uint32), tuple(arrays[:count])
        return list(lax.while_loop(is_going, stepped, start)[1])

    given = [*tensors, *going.captured, *step.captured]
    with torch.no_grad():
        outs = record_function(what, looped, given, makers.random, makers.key)
    if needing:
        outs = list(_NoGradient.apply(len(outs), *outs, *tensors))  # type: ignore[no-untyped-call]
    return step.structure.build(outs)


def _check_loop(carried: Sequence[jax.ShapeDtypeStruct], going: _CapturedBranch, step: _CapturedBranch) -> None:
    if len(going.results) != 1 or going.results[0].size != 1:
        raise RuntimeError(
            f"while_loop: cond_fn must return a tensor with one element, got {pytree.format_structs(going.results)}"
        )
    if [*carried] != [*step.results]:
        raise RuntimeError(
            "while_loop: carried values must keep their shapes and dtypes: got "
            f"{pytree.format_structs(carried)}, but body_fn returns {pytree.format_structs(step.results)}"
        )


class _NoGradient(torch.autograd.Function):
    """The identity; a backward pass through it raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = tuple(t.clone() for t in tensors[:count])
        ctx.mark_non_differentiable(*(t for t in results if not t.is_floating_point() and not t.is_complex()))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(
            "while_loop has no gradient on xla because the number of steps is unknown before it runs: use "
            "torch_xla.experimental.scan, fori_loop with bounds that are Python numbers, or torch.no_grad()"
        )


def associative_scan(combine: Callable[[Any, Any], Any], xs: Any, dim: int, reverse: bool = False) -> Any:
    """Compute the running combination of slices of ``xs`` along ``dim`` in a logarithmic number of steps.

    Raises:
      RuntimeError: ``combine`` does not return the structure, shapes and dtypes of its arguments.
      ValueError: Tensors of ``xs`` differ in size along ``dim``.
    """
    what = "associative_scan"
    leaves, structure = pytree.flatten_tensors(what, xs)
    if not leaves or len({t.shape[dim] for t in leaves}) != 1 or leaves[0].shape[dim] == 0:
        raise ValueError(
            f"{what}: expected tensors of equal, nonzero size in dimension {dim}, got {pytree.format_structs(leaves)}"
        )
    moved = [torch.movedim(t, dim, 0) for t in leaves]
    outs = associative_scan_flat(
        lambda *args: pytree.flatten_tensors(
            what, combine(structure.build(args[: len(leaves)]), structure.build(args[len(leaves) :]))
        )[0],
        moved,
        (),
        reverse,
    )
    return structure.build([torch.movedim(t, 0, dim) for t in outs])


def associative_scan_flat(
    combine: Callable[..., Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = (), reverse: bool = False
) -> list[torch.Tensor]:
    """Scan over dimension 0 with ``combine(*first slices, *second slices, *additional)``, which returns a list."""
    what = "associative_scan"
    tensors = _tensors(what, (*xs, *additional))
    count = len(xs)
    slices = [jax.ShapeDtypeStruct(s.shape[1:], s.dtype) for s in jax_function.shape_structs(xs)]
    structs = [*slices, *slices, *jax_function.shape_structs(tensors[count:])]
    made = _record(what, combine, [*xs, *xs, *additional], structs, tensors[0].device.index)
    if [*made.results] != slices:
        raise RuntimeError(
            f"{what}: expected combine_fn to return {pytree.format_structs(slices)}, like its arguments, "
            f"got {pytree.format_structs(made.results)}"
        )
    makers = _BranchFunctions(what, made)
    if makers.random:
        raise RuntimeError(f"{what}: combine_fn must not draw random numbers: the number of calls is undefined")

    def scanned(seed: Any, *arrays: jax.Array) -> Sequence[jax.Array]:
        shared = arrays[count:]
        (function,) = makers.functions()
        combined = jax.vmap(lambda one, other: tuple(function(None, *one, *other, *shared)))
        return list(lax.associative_scan(combined, tuple(arrays[:count]), reverse=reverse))

    return record_function(what, scanned, [*tensors, *made.captured], False, (makers.key, reverse))


def map_slices(function: Callable[..., Any], xs: Any, args: Sequence[Any] = ()) -> Any:
    """Return ``function(slices of xs, *args)`` for each index of dimension 0, stacked."""
    return scan.scan(lambda _, x: (None, function(x, *args)), None, xs, save_all, what="map")[1]


def scan_flat(
    combine: Callable[..., Any], init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()
) -> list[torch.Tensor]:
    """Run torch's scan: ``combine(*carry, *slices, *additional)`` returns one list of the carry and the outputs."""
    count = len(init)

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        outs = list(combine(*carry, *x, *additional))
        return outs[:count], outs[count:]

    carry, ys = scan.scan(step, list(init), list(xs), save_all)
    return [*carry, *ys]


def should_record(*values: Any) -> bool:
    """Whether to record a control flow call with these tensors: some are on xla, and none is a tracer's."""
    found = [t for value in values for t in _leaves(value)]
    plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in found)
    return plain and any(t.device.type == "xla" for t in found) and capture_modes.has_no_user_modes()


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _leaves(item)]
    return [t for item in value.values() for t in _leaves(item)] if isinstance(value, dict) else []
