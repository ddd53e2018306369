"""Scan a torch function over the first dimension of tensors: one lax.scan in forward, another one in backward.

    carry ──► body ──► body ──► body ──► carry       body: the traced function (traced_function.py)
               ▲│       ▲│       ▲│
              x[0]y[0] x[1]y[1] x[2]y[2]             backward runs from right to left, on the saved residuals

Tensors from outside are the same in each step; their gradient is the sum over the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import capture_function, jax_function, pure_function, pytree, traced_function
from torch_xla._engine.capture.autograd_function import DifferentiableCall
from torch_xla._engine.capture.capture_function import CapturedFunction
from torch_xla._engine.capture.joint_graph import Keep
from torch_xla._engine.capture.pure_function import RecordedCall
from torch_xla._engine.capture.pytree import TensorTree
from torch_xla._engine.capture.traced_function import TracedFunction
from torch_xla._engine.lowering import threefry


@dataclass(frozen=True, slots=True)
class ScanSpec:
    """The length of a scan and the layout of the body's arguments: carry, elements, tensors from outside."""

    length: int
    carry: int
    elements: int

    @property
    def outside(self) -> int:
        """Index of the first argument from outside."""
        return self.carry + self.elements


def build_scan(what: str, name: str, recorded: CapturedFunction, loop: ScanSpec, keep: Keep) -> RecordedCall:
    """Build the call that records the full loop."""
    made = traced_function.trace_captured(what, recorded, keep)
    structs = recorded.structs[: len(recorded.structs) - recorded.results]
    full = [_stack_struct(s, loop) if loop.carry <= i < loop.outside else s for i, s in enumerate(structs)]
    full = [traced_function.SEED, *full] if made.random else full
    call = jax_function.trace_and_register(what, name, lambda *arrays: _forward(made, loop, arrays), full)
    derivative = None
    if made.backward is not None:
        saved = tuple(i + made.random for i in made.saved_inputs if i >= loop.carry)
        inputs = tuple(i + made.random for i in made.inputs)
        gradient = _Backward(made, loop, structs)
        derivative = DifferentiableCall(what, call, made.results, saved, inputs, made.graded, gradient, full)
    return RecordedCall(derivative, call, made.results, recorded.tree, made.random)


def _stack_struct(struct: jax.ShapeDtypeStruct, loop: ScanSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((loop.length, *struct.shape), struct.dtype)


def _forward(made: TracedFunction, loop: ScanSpec, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the results, then the carries of each step that backward needs, then the residuals."""
    seed, given = (arrays[0], arrays[1:]) if made.random else (None, arrays)
    outside = given[loop.outside :]
    saved = [i for i in made.saved_inputs if i < loop.carry]

    def step(carry: Any, item: Any) -> Any:
        number, elements = item
        if seed is None:
            outs = made.forward_without_seed(*carry, *elements, *outside)
        else:
            outs = made.forward(step_seed(seed, number), *carry, *elements, *outside)
        ys, residuals = outs[loop.carry : made.results], outs[made.results :]
        return tuple(outs[: loop.carry]), [*ys, *(carry[i] for i in saved), *residuals]

    numbers = None if seed is None else jnp.arange(loop.length, dtype=np.uint32)
    items = numbers, tuple(given[loop.carry : loop.outside])
    carry, stacked = lax.scan(step, tuple(given[: loop.carry]), items, length=loop.length)
    return [*carry, *stacked]


def step_seed(seed: jax.Array, number: jax.Array) -> jax.Array:
    """Return the seed of a step, far from the seeds of all other steps."""
    key = threefry.wrap_key_data(lax.bitcast_convert_type(seed, jnp.uint32))
    return lax.bitcast_convert_type(jax.random.bits(jax.random.fold_in(key, number), (2,), np.uint32), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Backward:
    """The gradient of a loop; see autograd_function.Backward."""

    made: TracedFunction
    loop: ScanSpec
    structs: Sequence[jax.ShapeDtypeStruct]  # of a step's arguments

    def __call__(self, saved: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> list[jax.Array]:
        made, loop = self.made, self.loop
        inputs = [i for i in made.saved_inputs if i >= loop.carry]
        elements = {i: a for i, a in zip(inputs, saved, strict=False) if i < loop.outside}
        outside = {i: a for i, a in zip(inputs, saved, strict=False) if i >= loop.outside}
        saved_carries = [i for i in made.saved_inputs if i < loop.carry]
        elements |= dict(zip(saved_carries, saved[len(inputs) :], strict=False))
        residuals = list(saved[len(inputs) + len(saved_carries) :])
        given = dict(zip(made.graded, cotangents, strict=True))
        carry = {
            i: given.get(i, jnp.zeros(self.structs[i].shape, self.structs[i].dtype))
            for i in sorted({i for i in (*made.graded, *made.inputs) if i < loop.carry})
        }
        sums = {i: jnp.zeros(self.structs[i].shape, self.structs[i].dtype) for i in made.inputs if i >= loop.outside}
        ys = {i: given[i] for i in made.graded if i >= loop.carry}

        def step(state: Any, item: Any) -> Any:
            carry, sums = state
            ys, values, residuals = item
            values = values | outside
            found = self._of_step([*(values[i] for i in made.saved_inputs), *residuals], carry | ys)
            carried = {i: found[i] if i in found else jnp.zeros_like(c) for i, c in carry.items()}
            summed = {i: total + found[i] for i, total in sums.items()}
            return (carried, summed), {i: g for i, g in found.items() if loop.carry <= i < loop.outside}

        (carry, sums), stacked = lax.scan(
            step, (carry, sums), (ys, elements, residuals), length=loop.length, reverse=True
        )
        gradients = carry | sums | stacked
        return [gradients[i] for i in made.inputs]

    def _of_step(self, saved: Sequence[jax.Array], cotangents: dict[int, jax.Array]) -> dict[int, jax.Array]:
        assert self.made.backward is not None
        found = self.made.backward(saved, [cotangents[i] for i in self.made.graded])
        return dict(zip(self.made.inputs, found, strict=True))


# --- scan of torch functions


@dataclass(frozen=True, slots=True)
class _Scan:
    known: RecordedCall
    ys: TensorTree
    empty: Sequence[tuple[tuple[int, ...], torch.dtype]]  # shapes and dtypes of the ys of a scan of length 0


#: Part of autograd's error.
_LEAF_WRITE = "leaf Variable that requires grad is being used in an in-place operation"

_by_recorded: LruCache[RecordedCall] = LruCache(limit=lambda: 512, weigh=lambda known: known.bytes)
_by_signature: LruCache[_Scan] = LruCache(limit=lambda: 512, weigh=lambda found: found.known.bytes)


def scan(
    function: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    keep: Keep,
    pure_as: Hashable | None = None,
    what: str = "scan",
) -> tuple[Any, Any]:
    """See torch_xla.experimental.scan. ``pure_as``: cache key of a function that is captured only once."""
    name = jax_function.function_name(function)
    what = f"{what}: {name}"
    carry, structure = pytree.flatten_tensors(f"{what}: init", init)
    elements, elements_structure = pytree.flatten_tensors(f"{what}: xs", xs)
    loop = ScanSpec(_length(what, elements), len(carry), len(elements))
    given = [*carry, *elements]
    parts = _ScanCall(what, name, function, structure, elements_structure, loop, keep)
    captured: list[torch.Tensor] = []
    if pure_as is None:
        found = parts.record(given, captured)
    else:
        facts = tuple((t.dtype, t.shape, t.requires_grad) for t in given)
        key = (
            pure_as,
            structure.key(what),
            elements_structure.key(what),
            facts,
            loop,
            keep,
            pure_function.capture_state_key(),
        )
        found = jax_function.get_or_make(
            _by_signature, key, lambda: parts.record(given, None), lambda s: s.known.numbers
        )
    if loop.length == 0:
        ys = [torch.empty((0, *shape), dtype=dtype, device=given[0].device) for shape, dtype in found.empty]
        return init, found.ys.build(ys)
    outs = pure_function.run_recorded_call(found.known, [*given, *captured])
    return structure.build(outs[: loop.carry]), found.ys.build(outs[loop.carry :])


def _length(what: str, elements: Sequence[torch.Tensor]) -> int:
    if not elements:
        raise ValueError(f"{what}: xs has no tensor; its first dimension defines the number of steps")
    if any(t.dim() == 0 for t in elements) or len({t.shape[0] for t in elements}) > 1:
        raise ValueError(
            f"{what}: the tensors of xs must have equal size in dimension 0, got {pytree.format_structs(elements)}"
        )
    return int(elements[0].shape[0])


@dataclass(frozen=True, slots=True)
class _ScanCall:
    """The flattened arguments of a call of scan."""

    what: str
    name: str
    function: Callable[[Any, Any], tuple[Any, Any]]
    carry: TensorTree
    elements: TensorTree
    loop: ScanSpec
    keep: Keep

    def record(self, given: Sequence[torch.Tensor], captured: list[torch.Tensor] | None) -> _Scan:
        """Capture the function repeatedly until a carry requires a gradient after a step only if it does before."""
        loop = self.loop
        structs = jax_function.shape_structs(given)
        structs = [jax.ShapeDtypeStruct(s.shape[1:], s.dtype) if i >= loop.carry else s for i, s in enumerate(structs)]
        graded = {i for i, t in enumerate(given) if t.requires_grad and torch.is_grad_enabled()}
        seen: list[TensorTree] = []
        copied: set[int] = set()

        def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
            result, structure = self._called([t.clone() if i in copied else t for i, t in enumerate(tensors)])
            seen.append(structure)
            return result

        while True:
            found = None if captured is None else list[torch.Tensor]()
            device = given[0].device.index
            inputs = tuple(sorted(graded))
            try:
                recorded = capture_function.capture_function(
                    self.what, flat, structs, inputs, device, found, writable=loop.carry
                )
            except RuntimeError as error:
                # Autograd rejects an in-place write to an argument that requires a gradient, but not to a copy of it.
                if copied or _LEAF_WRITE not in str(error):
                    raise
                copied = {i for i in graded if i < loop.carry}
                continue
            now = graded | {i for i in recorded.graded if i < loop.carry}
            if now == graded:
                break
            graded = now
        self._check_carried(structs, recorded)
        if captured is not None and found is not None:
            captured += found
        key = (recorded.key, loop, self.name, self.keep)
        known = jax_function.get_or_make(
            _by_recorded, key, lambda: build_scan(self.what, self.name, recorded, loop, self.keep), lambda k: k.numbers
        )
        ys = recorded.structs[len(recorded.structs) - recorded.results + loop.carry :]
        return _Scan(known, seen[-1], [(tuple(s.shape), dtypes.torch_dtype(s.dtype)) for s in ys])

    def _called(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], TensorTree]:
        loop = self.loop
        result = self.function(self.carry.build(tensors[: loop.carry]), self.elements.build(tensors[loop.carry :]))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(f"{self.what}: expected a pair (carry, y) as the function's result, got {type(result)}")
        carry, carry_structure = pytree.flatten_tensors(f"{self.what}: the carry of the result", result[0])
        if carry_structure != self.carry:
            raise ValueError(
                f"{self.what}: the structure of the returned carry differs from that of init: "
                f"{carry_structure.spec} instead of {self.carry.spec}"
            )
        ys, ys_structure = pytree.flatten_tensors(f"{self.what}: the y of the result", result[1])
        return [*carry, *ys], ys_structure

    def _check_carried(self, structs: Sequence[jax.ShapeDtypeStruct], recorded: CapturedFunction) -> None:
        results = recorded.structs[len(recorded.structs) - recorded.results :]
        before, after = structs[: self.loop.carry], results[: self.loop.carry]
        if [(s.shape, s.dtype) for s in before] != [(s.shape, s.dtype) for s in after]:
            raise ValueError(
                f"{self.what}: the carry must keep its shapes and dtypes: init is {pytree.format_structs(before)}, but "
                f"the function returns {pytree.format_structs(after)}; convert it in the function, or convert init"
            )
