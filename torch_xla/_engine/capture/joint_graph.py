"""Partition a joint forward-backward graph into a forward and a backward function.

A save policy (``Keep``) decides whether a forward value that backward needs is saved as a residual or recomputed from
the inputs.

save_random_only: Save only random values and recompute the rest. If forward and backward run in one program,
recomputation is free: XLA's common subexpression elimination computes each value once. Few residuals cross from forward
to backward, each of which costs the host more than a microsecond.

save_all: Save the forward values, as torch's autograd does. Used for loops: XLA does not eliminate common
subexpressions across two loops. Values that cost nothing are recomputed (views, numbers, inputs in another dtype).
Values that only the recorded backward pass computes stay in backward, so torch.utils.checkpoint still saves memory.
Copies in host memory (place_to_host, also in saved_tensors_hooks) are saved: they are made to be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine.capture.custom_ops import CustomOpCall
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.compilation import graph_function
from torch_xla._engine.graph.graph_spec import FUNCTIONAL, LIST_TAGS, ArgTag, GraphSpec, NodeSpec, operands
from torch_xla._engine.lowering import RULES

GROUP = "torch_xla::getitem"
SEED = "torch_xla::seed"
TO_MEMORY = "torch_xla::to_memory_kind"


@dataclass(frozen=True, slots=True, eq=False)
class JointGraph:
    """Spec of a graph that computes a function and its gradient.

    ``order`` maps each graph input to the index of a function input, or (from ``inputs`` on) to the cotangent of a
    result; -1 marks one of the ``constants``. ``custom_calls`` are the calls of custom operators that recorded some of
    its nodes. ``base`` is the generator state at which recording started. ``results`` and ``gradients`` are value
    numbers of the graph.
    """

    spec: GraphSpec
    order: Sequence[int]
    constants: Sequence[Any]
    numbers: tuple[np.ndarray, np.ndarray]
    results: Sequence[int]
    gradients: Sequence[int]
    inputs: int
    base: int
    custom_calls: Sequence[CustomOpCall] = ()

    def nodes_needed_by(self, roots: Sequence[int]) -> list[int]:
        """Return the nodes that the roots depend on, in topological order."""
        first = len(self.spec.leaves)
        needed, stack = set(), [r for r in roots if r >= first]
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                stack.extend(n for n in operands(self.spec.nodes[value - first]) if n >= first)
        return sorted(value - first for value in needed)


@dataclass(frozen=True, slots=True)
class Residuals:
    """Which forward values are saved for backward, and which of these are in host memory until backward reads them."""

    is_saved: Callable[[int], bool]
    on_host: frozenset[int] = field(default=frozenset())


#: A save policy.
Keep = Callable[[JointGraph], Residuals]


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """A forward and a backward function of arrays.

    ``forward(seed, *inputs)`` returns the results, then the residuals; ``backward([*saved inputs, *residuals],
    cotangents)`` returns the gradients. ``saved_inputs`` are the indices of the inputs that backward reads, in order.
    """

    forward: Callable[..., Sequence[jax.Array]]
    backward: Callable[[Sequence[jax.Array], Sequence[jax.Array]], Sequence[jax.Array]]
    saved_inputs: tuple[int, ...]


class _SubgraphFunction:
    """A subgraph as a function of arrays; its inputs are any values of the full graph."""

    def __init__(self, spec: GraphSpec, leaves: Sequence[int], nodes: Sequence[int], roots: Sequence[int]) -> None:
        first = len(spec.leaves)
        number = {value: index for index, value in enumerate([*leaves, *(first + n for n in nodes)])}
        shapes = [_output_spec(spec, value) for value in leaves]
        selected = [replace(spec.nodes[n], args=[_renumber(a, number) for a in spec.nodes[n].args]) for n in nodes]
        self.call = graph_function.graph_function(
            GraphSpec(shapes, selected, [number[r] for r in roots], [], spec.precision)
        )


def _output_spec(spec: GraphSpec, value: int) -> Any:
    first = len(spec.leaves)
    if value < first:
        return spec.leaves[value]
    node = spec.nodes[value - first]
    return node.outs[0] if node.outs else ((), None)


def _renumber(arg: tuple[int, Any], number: dict[int, int]) -> tuple[int, Any]:
    tag, payload = arg
    if tag == ArgTag.VALUE:
        return tag, number[payload]
    if tag in LIST_TAGS:
        return tag, [_renumber(a, number) for a in payload]
    return arg


class _PartitionPlan:
    """Assign the nodes of a joint graph to forward or backward, and choose the residuals.

    Visits the values that the gradients need, from the gradients towards the inputs:

        value                                     in backward
        input of the function                     read (saved_inputs)
        depends on a cotangent (``late``)         computed
        seed of the random number generator       read: forward has added the seed of this call (_SeedOffsets)
        value that the save policy keeps          read (a residual)
        any other                                 recomputed (``again``) from operands that follow the same rules

    Random numbers are therefore equal in forward and in recomputation: backward reads a drawn value, or draws it again
    from the same saved seed. It never takes a new seed. Example, dropout under torch.utils.checkpoint, which restores
    the generator state and runs the forward again:

        forward    seed0 ──► uniform ──► mask0 ──► y = x * mask0
        recorded   seed1 ──► uniform ──► mask1 ──► dx = dy * mask1       seed1 == seed0: the state was restored
        save_random_only   residuals: mask1, which is drawn in forward; XLA merges it with mask0
        save_all           residual: seed1; uniform(seed1) runs again in backward and equals mask0
    """

    def __init__(self, graph: JointGraph, keep: Callable[[int], bool]) -> None:
        self.spec, self.first = graph.spec, len(graph.spec.leaves)
        self.keep = keep
        self.late = {value for value, index in enumerate(graph.order) if index >= graph.inputs}
        for number, node in enumerate(graph.spec.nodes, self.first):
            if self.late.intersection(operands(node)):
                self.late.add(number)
        self.again: set[int] = set()
        self.saved: list[int] = []
        self._seen: set[int] = set()
        for value in graph.gradients:
            self._need(value)

    def _need(self, value: int) -> None:
        """Make a value and its operands available to backward."""
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


def save_random_only(graph: JointGraph) -> Residuals:
    """Save policy that saves random values and recomputes all others."""
    return Residuals(lambda value: _is_random(graph, value))


def _is_random(graph: JointGraph, value: int) -> bool:
    first = len(graph.spec.leaves)
    node = graph.spec.nodes[value - first]
    if node.op == GROUP:
        node = graph.spec.nodes[operands(node)[0] - first]
    return node.op in RULES and RULES[node.op].random


def save_all(graph: JointGraph) -> Residuals:
    """Save policy of torch's autograd: save every forward value that is not free to recompute."""
    first = len(graph.spec.leaves)
    forward = {number + first for number in graph.nodes_needed_by(graph.results)}

    def is_saved(value: int) -> bool:
        node = graph.spec.nodes[value - first]
        if node.op == GROUP:
            return operands(node)[0] in forward
        return _is_host_copy(node) or (value in forward and not _is_free(graph, value))

    return Residuals(is_saved)


def _is_host_copy(node: NodeSpec) -> bool:
    """Whether a node copies a value to host memory; a copy of a gradient is computed in backward all the same."""
    return node.op == TO_MEMORY and node.args[1] == (ArgTag.CONSTANT, True)


_CASTS = frozenset({"aten::_to_copy"})


def _is_free(graph: JointGraph, value: int) -> bool:
    """Whether a value is free to recompute: a view, a number, an input cast to another dtype."""
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
    return node.schema_kind == FUNCTIONAL and is_view(node.op)


@functools.cache
def is_view(op: str) -> bool:
    """Whether an operator returns a view of its argument."""
    space, _, rest = op.partition("::")
    name, _, overload = rest.partition(".")
    try:
        schema = dispatcher.schema(getattr(getattr(getattr(torch.ops, space), name), overload or "default"))
    except (AttributeError, RuntimeError):
        return False
    aliases = [returned.alias_info for returned in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def split_joint_graph(graph: JointGraph, keep: Keep) -> ForwardBackward:
    """Partition a joint graph into the functions that compute the results and their gradients."""
    spec, order, inputs = graph.spec, graph.order, graph.inputs
    choice = keep(graph)
    plan = _PartitionPlan(graph, choice.is_saved)
    fixed = [value for value, index in enumerate(order) if index < 0]
    given = [value for value, index in enumerate(order) if 0 <= index < inputs]
    coming = [value for value, index in enumerate(order) if index >= inputs]
    read = [value for value in plan.saved if value < plan.first]
    saved_inputs = [value for value in read if order[value] >= 0]
    residuals = [value for value in plan.saved if value >= plan.first]
    are_on_host = [value in choice.on_host for value in residuals]
    roots = [*graph.results, *residuals]
    forward = _SubgraphFunction(spec, [*fixed, *given], graph.nodes_needed_by(roots), roots)
    again = sorted(value - plan.first for value in plan.again)
    backward = _SubgraphFunction(spec, [*fixed, *saved_inputs, *residuals, *coming], again, graph.gradients)
    constants = [graph.constants[value] for value in fixed]
    floats, ints = graph.numbers
    seeds = _SeedOffsets(graph)

    def run_forward(seed: jax.Array | None, *arrays: jax.Array) -> Sequence[jax.Array]:
        args = [arrays[order[value]] for value in given]
        found = forward.call(jnp.asarray(floats), seeds.put(seed), *constants, *args)
        return _place(found, [*(False for _ in graph.results), *are_on_host], host=True)

    def run_backward(saved: Sequence[jax.Array], cotangents: Sequence[jax.Array]) -> Sequence[jax.Array]:
        late = [cotangents[order[value] - inputs] for value in coming]
        on_device = _place(saved, [*(False for _ in saved_inputs), *are_on_host], host=False)
        return backward.call(jnp.asarray(floats), jnp.asarray(ints), *constants, *on_device, *late)

    return ForwardBackward(run_forward, run_backward, tuple(order[value] for value in saved_inputs))


def _place(values: Sequence[jax.Array], moves: Sequence[bool], host: bool) -> list[jax.Array]:
    """Return the values; those that ``moves`` selects are moved to host memory, or from there to the device."""
    move = RULES[TO_MEMORY].function
    return [move(x, host) if moved else x for x, moved in zip(values, moves, strict=True)]


class _SeedOffsets:
    """Positions of the generator seeds among a graph's integer inputs, and their offsets from the initial state.

    A function is captured with the generator state ``base`` (0), so equal functions have equal graphs. Each seed node
    of the graph has the state at its draw as an integer input. A call that starts from ``seed`` replaces each state by
    ``seed + (state - base)``:

        captured, base 0     ints = [0, ..., 0]         two seed nodes: the function restored the state (checkpoint)
        call with seed s     ints = [s, ..., s]         so both still draw the same numbers
        a state of base + d  becomes s + d              the order of draws is that of the captured run

    Only forward puts seeds in; backward reads the seeds that forward has computed (_PartitionPlan).

    The 32-bit halves of a seed are added separately, without a carry, as a draw does (key_data in
    lowering/recorder_ops.py).
    """

    def __init__(self, graph: JointGraph) -> None:
        self._indices, self._ints = _seed_indices(graph.spec), graph.numbers[1]
        halves = np.array([self._ints[index] for index in self._indices], np.int64).view(np.uint32)
        base = np.array([graph.base], np.int64).view(np.uint32)
        self._offsets = halves.reshape(-1, 2) - base

    def put(self, seed: jax.Array | None) -> Sequence[jax.Array]:
        """Return the integer inputs of a call that starts from ``seed``.

        They are separate arrays, so that only draws depend on the seed.
        """
        found = [jnp.asarray(number) for number in self._ints]
        if seed is not None:
            start = lax.bitcast_convert_type(jnp.asarray(seed), jnp.uint32)
            for index, offset in zip(self._indices, self._offsets, strict=True):
                found[index] = lax.bitcast_convert_type(start + offset, jnp.int64)
        return found


def _seed_indices(spec: GraphSpec) -> list[int]:
    """Return the positions of the generator seeds among the integer inputs."""
    indices = []
    for node in spec.nodes:
        if node.op == SEED:
            tag, payload = node.args[0]
            assert tag == ArgTag.INT_INPUT, f"a seed that is not an integer input: {node.args}"
            indices.append(payload)
    return indices
