"""One graph of a function and its gradient, as two: what runs forward, and what needs the gradients of results.

Backward computes again what it needs of forward, from the inputs and what was drawn at random, which is saved. In one
program this costs nothing: XLA finds that both compute the same (common subexpressions), and computes it once. So few
values are handed from one to the other, each of which costs the host more than a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.graph import program
from torch_xla._engine.graph.program import GraphSpec, NodeSpec
from torch_xla._engine.lowering import RULES

_GROUP = "torch_xla::getitem"
_SEED = "torch_xla::seed"


@dataclass(frozen=True, slots=True)
class Split:
    """Two functions of arrays.

    ``forward(seed, *inputs)`` gives results, then residuals; ``backward([*saved inputs, *residuals], cotangents)`` the
    gradients. ``saved_inputs`` are those that backward reads, in order.
    """

    forward: Callable[..., Sequence[jax.Array]]
    backward: Callable[[Sequence[jax.Array], Sequence[jax.Array]], Sequence[jax.Array]]
    saved_inputs: tuple[int, ...]


class _Part:
    """Some nodes of a graph as a graph of their own, whose leaves are other values of it."""

    def __init__(self, spec: GraphSpec, leaves: Sequence[int], nodes: Sequence[int], roots: Sequence[int]) -> None:
        first = len(spec.leaves)
        number = {value: place for place, value in enumerate([*leaves, *(first + n for n in nodes)])}
        shapes = [_promise(spec, value) for value in leaves]
        kept = [replace(spec.nodes[n], args=[_renumbered(a, number) for a in spec.nodes[n].args]) for n in nodes]
        self.call = program.function(GraphSpec(shapes, kept, [number[r] for r in roots], [], spec.precision))


def _promise(spec: GraphSpec, value: int) -> Any:
    first = len(spec.leaves)
    if value < first:
        return spec.leaves[value]
    node = spec.nodes[value - first]
    if node.op == _GROUP:
        (_, group), (_, place) = node.args
        return spec.nodes[group - first].outs[place]
    return node.outs[0] if node.outs else ((), None)


def _renumbered(arg: tuple[int, Any], number: dict[int, int]) -> tuple[int, Any]:
    tag, payload = arg
    if tag == 1:
        return tag, number[payload]
    if tag in (2, 7):
        return tag, [_renumbered(a, number) for a in payload]
    return arg


def operands(node: NodeSpec) -> list[int]:
    """The numbers of the values that a node reads."""

    def of(arg: tuple[int, Any]) -> list[int]:
        tag, payload = arg
        if tag == 1:
            return [payload]
        return [n for a in payload for n in of(a)] if tag in (2, 7) else []

    if node.op == _GROUP:
        return [node.args[0][1]]
    return [n for arg in node.args for n in of(arg)]


class _Plan:
    """Which nodes of a graph run when, and what is handed on."""

    def __init__(self, spec: GraphSpec, order: Sequence[int], gradients: Sequence[int], inputs: int) -> None:
        self.spec, self.first = spec, len(spec.leaves)
        self.late = {value for value, place in enumerate(order) if place >= inputs}
        for number, node in enumerate(spec.nodes, self.first):
            if self.late.intersection(operands(node)):
                self.late.add(number)
        self.again: set[int] = set()
        self.saved: list[int] = []
        self._seen: set[int] = set()
        for value in gradients:
            self._need(value)

    def _need(self, value: int) -> None:
        """Makes a value available to backward."""
        stack = [value]
        while stack:
            value = stack.pop()
            if value in self._seen:
                continue
            self._seen.add(value)
            if value < self.first:
                if value not in self.late:
                    self.saved.append(value)
                continue
            node = self.spec.nodes[value - self.first]
            if value in self.late or self._may_compute_again(node):
                self.again.add(value)
                stack.extend(reversed(operands(node)))
            else:
                self.saved.append(value)

    def _may_compute_again(self, node: NodeSpec) -> bool:
        if node.op == _GROUP:
            node = self.spec.nodes[operands(node)[0] - self.first]
        return node.op != _SEED and not (node.op in RULES and RULES[node.op].random)

    def early(self, roots: Sequence[int]) -> list[int]:
        """The nodes that the roots need, in order; none of them late."""
        needed, stack = set(), [r for r in roots if r >= self.first]
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                stack.extend(n for n in operands(self.spec.nodes[value - self.first]) if n >= self.first)
        return sorted(value - self.first for value in needed)


def split(
    spec: GraphSpec,
    order: Sequence[int],
    constants: Sequence[Any],
    numbers: tuple[np.ndarray, np.ndarray],
    results: Sequence[int],
    gradients: Sequence[int],
    inputs: int,
) -> Split:
    """The parts of a graph that computes ``results`` and their ``gradients``.

    ``order`` says of each leaf which input it is, or (from ``inputs`` on) which gradient of a result; -1 for one of the
    ``constants``.
    """
    plan = _Plan(spec, order, gradients, inputs)
    fixed = [value for value, place in enumerate(order) if place < 0]
    given = [value for value, place in enumerate(order) if 0 <= place < inputs]
    coming = [value for value, place in enumerate(order) if place >= inputs]
    read = [value for value in plan.saved if value < plan.first]
    saved_inputs = [value for value in read if order[value] >= 0]
    residuals = [value for value in plan.saved if value >= plan.first]
    roots = [*results, *residuals]
    forward = _Part(spec, [*fixed, *given], plan.early(roots), roots)
    again = sorted(value - plan.first for value in plan.again)
    backward = _Part(spec, [*fixed, *saved_inputs, *residuals, *coming], again, gradients)
    held = [constants[value] for value in fixed]
    floats, ints = numbers
    seeds = _seed_places(spec)

    def run_forward(seed: jax.Array | None, *arrays: jax.Array) -> Sequence[jax.Array]:
        whole = jnp.asarray(ints)
        if seeds:
            whole = whole.at[np.array(seeds)].set(seed)
        return forward.call(jnp.asarray(floats), whole, *held, *(arrays[order[value]] for value in given))

    def run_backward(saved: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> Sequence[jax.Array]:
        late = [cotangents[order[value] - inputs] for value in coming]
        return backward.call(jnp.asarray(floats), jnp.asarray(ints), *held, *saved, *late)

    return Split(run_forward, run_backward, tuple(order[value] for value in saved_inputs))


def _seed_places(spec: GraphSpec) -> list[int]:
    """Where among the integers the seeds of random numbers are."""
    places = []
    for node in spec.nodes:
        if node.op == _SEED:
            tag, payload = node.args[0]
            assert tag == 4, f"a seed that is no operand: {node.args}"
            places.append(payload)
    return places
