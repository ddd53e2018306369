"""Orders the nodes of CPU programs so that XLA neither copies donated inputs nor fuses ever longer chains.

XLA's CPU compiler (1) copies a donated buffer if it cannot prove that all readers run before it is overwritten, and
(2) fuses elementwise chains of any length, duplicating producers into each consumer: compile time is quadratic in the
length. It decides about copies before it schedules independent instructions. Both are avoided here.

Example: a linear layer with SGD. The gradient of the input (``dx``) and the update both read the weight ``w``, and
neither depends on the other:

    %dx   = f32[8,4] dot(%dy, %w)              may run after %new
    %dw   = f32[4,4] dot(%dyT, %x)
    %new  = f32[4,4] subtract(%w, %dw)         output, aliases %w
    ==>  %copy = f32[4,4] copy(%w) for %dx: one copy of each weight in each step

``make_schedule`` moves updates to the end and makes the update wait for the matmuls that read the weight:

    %dx   = f32[8,4] dot(%dy, %w)
    %wait = f32[4,4] custom-call(%w, %dx), custom_call_target="...written", output_to_operand_aliasing={{}: (0, {})}
    %new  = f32[4,4] subtract(%wait, %dw)      needs %dx: no copy

The custom call does nothing: it returns %w in its own buffer, after %dx. A matmul that the update needs anyway (%dw)
is not waited for. Chains of DEEPEST ops are interrupted by the same custom call, whose result is a buffer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_xla._engine.base import dtypes, partitioning
from torch_xla._engine.compilation.foreach_fusion import FusableOp, fusable_ops, list_partitions
from torch_xla._engine.graph.graph_spec import (
    IN_PLACE,
    LIST_TAGS,
    ArgTag,
    GraphSpec,
    NodeSpec,
    is_collective,
    operands,
)
from torch_xla._engine.lowering.rules.views import VIEWS

#: Number of consecutive ops, not counting views, after which a value is materialized. XLA's CPU compiler fuses chains
#: of any length, into each of several consumers: its time is quadratic in the length.
DEEPEST = 16
FUSED = "torch_xla::fused_"
GETITEM = "torch_xla::getitem"
VIEWS_OF_ONE = frozenset(f"aten::{name}" for name in VIEWS) | {"aten::_unsafe_view"}

#: Ops that XLA does not fuse: their results are buffers.
NOT_FUSED = re.compile(r"aten::(mm|bmm|addmm|baddbmm|linear|convolution|convolution_backward|_scaled_dot_product_\w+)$")


def list_item_operands(spec: GraphSpec, node: NodeSpec) -> list[int] | None:
    """Return the values that one output of a list op depends on, those at its list position; None for other nodes."""
    if node.op != GETITEM:
        return None
    (_, group), (_, result) = node.args
    producer = spec.nodes[group - len(spec.leaves)]
    if not producer.op.startswith(("aten::_foreach_", FUSED)):
        return None
    # The outputs of a fused optimizer are several lists, concatenated.
    index = result % len(producer.args[0][1]) if producer.op.startswith(FUSED) else result
    items = [arg[index] if tag in LIST_TAGS and index < len(arg) else (tag, arg) for tag, arg in producer.args]
    return [payload for tag, payload in items if tag == ArgTag.VALUE]


def _update(spec: GraphSpec, value: int, leaf: int, parts: list[int] | None) -> int | None:
    """Return the value that overwrites an input, if the node of ``value`` updates it; else None.

    An in-place op updates its operand. A list op updates its first list, a fused optimizer any of its lists; it may
    also only read them.
    """
    node = spec.nodes[value - len(spec.leaves)]
    if parts is None:
        return value if node.schema_kind == IN_PLACE else None
    group = int(node.args[0][1])
    fused = spec.nodes[group - len(spec.leaves)].op.startswith(FUSED)
    return group if fused or parts[:1] == [leaf] else None


class _DonatedReads:
    """The matmuls that read donated inputs, and for each value the matmuls that it depends on."""

    def __init__(self, spec: GraphSpec, chained: Mapping[int, FusableOp]) -> None:
        self.matmuls: dict[int, list[int]] = defaultdict(list)  # input -> the matmuls that read it
        self.update: dict[int, int] = {}  # input -> the node that overwrites it
        self.come_from = [0] * len(spec.leaves)  # for each value: a bit per matmul that it depends on
        self.bits: dict[int, int] = {}
        leaf_of = {leaf: leaf for leaf in spec.donated}  # of inputs and their views
        joint: dict[tuple[int, int], int] = {}  # (fused node, list position) -> come_from
        for number, node in enumerate(spec.nodes):
            value = len(spec.leaves) + number
            if (member := chained.get(number)) is not None:
                self.update |= {leaf: number for leaf in member.lists[0] if leaf_of.get(leaf) == leaf}
                for part in list_partitions(node.outs):
                    joint |= dict.fromkeys(((value, index) for index in part), self._joint_bits(member, part))
                self.come_from.append(0)
                continue
            if node.op == GETITEM and (key := (node.args[0][1], node.args[1][1])) in joint:
                self.come_from.append(joint[key])
                continue
            come_from = 0
            parts = list_item_operands(spec, node)
            for operand in operands(node) if parts is None else parts:
                come_from |= self.come_from[operand]
                if (leaf := leaf_of.get(operand)) is None:
                    continue
                if node.op in VIEWS_OF_ONE:
                    leaf_of[value] = leaf
                elif NOT_FUSED.match(node.op):
                    self.matmuls[leaf].append(value)
                    self.bits.setdefault(value, 1 << len(self.bits))
                elif operand == leaf and (update := _update(spec, value, leaf, parts)) is not None:
                    self.update[leaf] = update - len(spec.leaves)
            self.come_from.append(come_from | self.bits.get(value, 0))

    def _joint_bits(self, member: FusableOp, part: range) -> int:
        come_from = 0
        for values in member.lists:
            for index in part:
                come_from |= self.come_from[values[index]]
        return come_from

    def depends_on(self, value: int, matmul: int) -> bool:
        """Return whether a value depends on a matmul."""
        return bool(self.come_from[value] & self.bits[matmul])


def _aliased_results(spec: GraphSpec) -> dict[int, int]:
    """Map each donated input to the output that jax aliases with it: the first unused one of its shape and dtype."""
    left = defaultdict(list)
    for root in reversed(spec.roots):
        left[spec.value_spec(root)].append(root)
    return {leaf: left[spec.leaves[leaf]].pop() for leaf in spec.donated if left[spec.leaves[leaf]]}


class LoweringSchedule(NamedTuple):
    """The lowering order of the nodes of a CPU program, and its additional dependencies."""

    order: Sequence[int]
    #: Foreach ops that can be fused, by node number.
    chained: Mapping[int, FusableOp]
    #: Node -> (input that it overwrites, matmuls to wait for), ...
    waits: Mapping[int, Sequence[tuple[int, Sequence[int]]]]


def make_schedule(spec: GraphSpec) -> LoweringSchedule:
    """Return the schedule of a graph. Updates come last: one op may update all weights, after all their readers."""
    chained = {} if dtypes.has_narrow_storage() or partitioning.partition_count() > 1 else fusable_ops(spec)
    if not spec.donated:
        return LoweringSchedule(range(len(spec.nodes)), chained, {})
    reads = _DonatedReads(spec, chained)
    order = _updates_last(spec, set(reads.update.values()))
    return LoweringSchedule(order, chained, _waits(spec, reads, order))


def _updates_last(spec: GraphSpec, updates: set[int]) -> list[int]:
    """Move updates and the nodes that depend on them to the end; the order of collectives does not change."""
    first: list[int] = []
    last: list[int] = []
    late: set[int] = set()  # values
    for number, node in enumerate(spec.nodes):
        if number in updates or (last and is_collective(node)) or not late.isdisjoint(operands(node)):
            last.append(number)
            late.add(len(spec.leaves) + number)
        else:
            first.append(number)
    return first + last


def _waits(
    spec: GraphSpec, reads: _DonatedReads, order: Sequence[int]
) -> Mapping[int, Sequence[tuple[int, Sequence[int]]]]:
    results = _aliased_results(spec)
    position = {len(spec.leaves) + number: index for index, number in enumerate(order)}
    found: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for leaf, number in reads.update.items():
        if leaf not in results:
            continue
        others = [matmul for matmul in reads.matmuls[leaf] if not reads.depends_on(results[leaf], matmul)]
        others = [p for p in others if not any(q != p and reads.depends_on(q, p) for q in others)]
        if others and max(position[other] for other in others) < position[len(spec.leaves) + number]:
            found[number].append((leaf, others))
    return found
