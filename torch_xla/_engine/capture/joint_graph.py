"""One graph of a function and its gradient, as two: what runs forward, and what needs the gradients of results.

What backward needs of forward is handed on, or computed again from the inputs; a Keep decides.

keep_random: all is computed again but what was drawn at random. Where both are in one program this costs nothing: XLA
finds that they compute the same (common subexpressions), and computes it once. So few values are handed from one to the
other, each of which costs the host more than a microsecond.

keep_all: forward's values are handed on, as torch's autograd does. For loops: XLA does not look from one into another.
What is made from others for nothing is computed again (views, numbers, inputs in another dtype), and what only the
recorded backward pass computes stays there: torch.utils.checkpoint does what it is for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.compat import dispatcher
from torch_xla._engine.compilation import graph_function
from torch_xla._engine.graph.graph_spec import GraphSpec, operands
from torch_xla._engine.lowering import RULES

GROUP = "torch_xla::getitem"
SEED = "torch_xla::seed"


@dataclass(frozen=True, slots=True, eq=False)
class JointGraph:
    """A described graph of a function and its gradient.

    ``order`` says of each leaf which input it is, or (from ``inputs`` on) which gradient of a result; -1 for one of the
    ``constants``. ``base`` is what random numbers started from. ``results`` and ``gradients`` are numbers of values.
    """

    spec: GraphSpec
    order: Sequence[int]
    constants: Sequence[Any]
    numbers: tuple[np.ndarray, np.ndarray]
    results: Sequence[int]
    gradients: Sequence[int]
    inputs: int
    base: int

    def nodes_needed_by(self, roots: Sequence[int]) -> list[int]:
        """The nodes that the roots need, in order."""
        first = len(self.spec.leaves)
        needed, stack = set(), [r for r in roots if r >= first]
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                stack.extend(n for n in operands(self.spec.nodes[value - first]) if n >= first)
        return sorted(value - first for value in needed)


#: Of a graph, which of the values that backward asks for are handed on to it.
Keep = Callable[[JointGraph], Callable[[int], bool]]


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Two functions of arrays.

    ``forward(seed, *inputs)`` gives results, then residuals; ``backward([*saved inputs, *residuals], cotangents)`` the
    gradients. ``saved_inputs`` are those that backward reads, in order.
    """

    forward: Callable[..., Sequence[jax.Array]]
    backward: Callable[[Sequence[jax.Array], Sequence[jax.Array]], Sequence[jax.Array]]
    saved_inputs: tuple[int, ...]


class _SubgraphFunction:
    """Some nodes of a graph as a graph of their own, whose leaves are other values of it."""

    def __init__(self, spec: GraphSpec, leaves: Sequence[int], nodes: Sequence[int], roots: Sequence[int]) -> None:
        first = len(spec.leaves)
        number = {value: place for place, value in enumerate([*leaves, *(first + n for n in nodes)])}
        shapes = [_promise(spec, value) for value in leaves]
        kept = [replace(spec.nodes[n], args=[_renumber(a, number) for a in spec.nodes[n].args]) for n in nodes]
        self.call = graph_function.graph_function(
            GraphSpec(shapes, kept, [number[r] for r in roots], [], spec.precision)
        )


def _promise(spec: GraphSpec, value: int) -> Any:
    first = len(spec.leaves)
    if value < first:
        return spec.leaves[value]
    node = spec.nodes[value - first]
    return node.outs[0] if node.outs else ((), None)


def _renumber(arg: tuple[int, Any], number: dict[int, int]) -> tuple[int, Any]:
    tag, payload = arg
    if tag == 1:
        return tag, number[payload]
    if tag in (2, 7):
        return tag, [_renumber(a, number) for a in payload]
    return arg


class _PartitionPlan:
    """Which nodes of a graph run when, and what is handed on."""

    def __init__(self, graph: JointGraph, keep: Callable[[int], bool]) -> None:
        self.spec, self.first = graph.spec, len(graph.spec.leaves)
        self.keep = keep
        self.late = {value for value, place in enumerate(graph.order) if place >= graph.inputs}
        for number, node in enumerate(graph.spec.nodes, self.first):
            if self.late.intersection(operands(node)):
                self.late.add(number)
        self.again: set[int] = set()
        self.saved: list[int] = []
        self._seen: set[int] = set()
        for value in graph.gradients:
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
            if value in self.late or not (node.op == SEED or self.keep(value)):
                self.again.add(value)
                stack.extend(reversed(operands(node)))
            else:
                self.saved.append(value)


def save_random_only(graph: JointGraph) -> Callable[[int], bool]:
    """As said above."""
    return lambda value: _is_random(graph, value)


def _is_random(graph: JointGraph, value: int) -> bool:
    first = len(graph.spec.leaves)
    node = graph.spec.nodes[value - first]
    if node.op == GROUP:
        node = graph.spec.nodes[operands(node)[0] - first]
    return node.op in RULES and RULES[node.op].random


def save_all(graph: JointGraph) -> Callable[[int], bool]:
    """As said above."""
    first = len(graph.spec.leaves)
    forward = {number + first for number in graph.nodes_needed_by(graph.results)}

    def is_kept(value: int) -> bool:
        node = graph.spec.nodes[value - first]
        if node.op == GROUP:
            return operands(node)[0] in forward
        return value in forward and not _is_free(graph, value)

    return is_kept


_CASTS = frozenset({"aten::_to_copy"})


def _is_free(graph: JointGraph, value: int) -> bool:
    """Whether a value is made for nothing from what there is: a view, a number, an input in another dtype."""
    first = len(graph.spec.leaves)
    node = graph.spec.nodes[value - first]
    needs = operands(node)
    if not needs:
        return node.op not in RULES or not RULES[node.op].random
    if node.op in _CASTS:
        source = needs[0]
        while source >= first and is_view(graph.spec.nodes[source - first].op):
            source = operands(graph.spec.nodes[source - first])[0]
        return source < first
    return node.form == 0 and is_view(node.op)


@functools.cache
def is_view(op: str) -> bool:
    """Whether an operator gives a view of its argument."""
    space, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    try:
        schema = dispatcher.schema(getattr(getattr(getattr(torch.ops, space), name), overload or "default"))
    except (AttributeError, RuntimeError):
        return False
    aliases = [returned.alias_info for returned in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def split_joint_graph(graph: JointGraph, keep: Keep) -> ForwardBackward:
    """The parts of a graph: what computes its results, and what computes their gradients."""
    spec, order, inputs = graph.spec, graph.order, graph.inputs
    plan = _PartitionPlan(graph, keep(graph))
    fixed = [value for value, place in enumerate(order) if place < 0]
    given = [value for value, place in enumerate(order) if 0 <= place < inputs]
    coming = [value for value, place in enumerate(order) if place >= inputs]
    read = [value for value in plan.saved if value < plan.first]
    saved_inputs = [value for value in read if order[value] >= 0]
    residuals = [value for value in plan.saved if value >= plan.first]
    roots = [*graph.results, *residuals]
    forward = _SubgraphFunction(spec, [*fixed, *given], graph.nodes_needed_by(roots), roots)
    again = sorted(value - plan.first for value in plan.again)
    backward = _SubgraphFunction(spec, [*fixed, *saved_inputs, *residuals, *coming], again, graph.gradients)
    held = [graph.constants[value] for value in fixed]
    floats, ints = graph.numbers
    seeds = _SeedOffsets(graph)

    def run_forward(seed: jax.Array | None, *arrays: jax.Array) -> Sequence[jax.Array]:
        return forward.call(jnp.asarray(floats), seeds.put(seed), *held, *(arrays[order[value]] for value in given))

    def run_backward(saved: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> Sequence[jax.Array]:
        late = [cotangents[order[value] - inputs] for value in coming]
        return backward.call(jnp.asarray(floats), jnp.asarray(ints), *held, *saved, *late)

    return ForwardBackward(run_forward, run_backward, tuple(order[value] for value in saved_inputs))


class _SeedOffsets:
    """Where among the integers the seeds of random numbers are, and how far each is from the first state.

    A program has several where a function sets the state back, as torch.utils.checkpoint does: what it then draws is
    what it has drawn before. The halves of a seed are added apart, as a draw does it (key_data in lowering/recorder_ops.py).
    """

    def __init__(self, graph: JointGraph) -> None:
        self._places, self._ints = _seed_places(graph.spec), graph.numbers[1]
        halves = np.array([self._ints[place] for place in self._places], np.int64).view(np.uint32)
        base = np.array([graph.base], np.int64).view(np.uint32)
        self._distances = halves.reshape(-1, 2) - base

    def put(self, seed: jax.Array | None) -> Sequence[jax.Array]:
        """The integers, with the seeds of a call that starts from ``seed``. Apart: only a draw depends on the seed."""
        found = [jnp.asarray(number) for number in self._ints]
        if seed is not None:
            start = lax.bitcast_convert_type(jnp.asarray(seed), jnp.uint32)
            for place, distance in zip(self._places, self._distances, strict=True):
                found[place] = lax.bitcast_convert_type(start + distance, jnp.int64)
        return found


def _seed_places(spec: GraphSpec) -> list[int]:
    """Where among the integers the seeds of random numbers are."""
    places = []
    for node in spec.nodes:
        if node.op == SEED:
            tag, payload = node.args[0]
            assert tag == 4, f"a seed that is no operand: {node.args}"
            places.append(payload)
    return places
