"""What lies in memory in a program for the CPU, and when: XLA's compiler there has to be told.

It fuses a chain of any length, and copies a value that is written over where it cannot see that all have read it. So
long chains are cut, and the update of a weight waits for the product that makes the gradient of the layer's input: both
read the weight, neither needs the other, and which runs first is decided after the copies are made.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_xla._engine.base import dtypes, partitioning
from torch_xla._engine.compilation.foreach_fusion import FusableOp, fusable_ops, list_partitions
from torch_xla._engine.graph.graph_spec import IN_PLACE, GraphSpec, NodeSpec, is_collective, operands
from torch_xla._engine.lowering.rules.views import VIEWS

#: After so many operations in a row, views apart, a value is written to memory in a program for the CPU. XLA's compiler
#: there fuses a chain of any length, and into each of several fusions again: its time grows with the square.
DEEPEST = 16
FUSED = "torch_xla::fused_"
GETITEM = "torch_xla::getitem"
VIEWS_OF_ONE = frozenset(f"aten::{name}" for name in VIEWS) | {"aten::_unsafe_view"}

#: What XLA does not fuse: their results lie in memory.
NOT_FUSED = re.compile(r"aten::(mm|bmm|addmm|baddbmm|linear|convolution|convolution_backward|_scaled_dot_product_\w+)$")


def list_item_operands(spec: GraphSpec, node: NodeSpec) -> list[int] | None:
    """Of one result of an operation on lists the values that it needs, which are in its place. None for other nodes."""
    if node.op != GETITEM:
        return None
    (_, group), (_, result) = node.args
    maker = spec.nodes[group - len(spec.leaves)]
    if not maker.op.startswith(("aten::_foreach_", FUSED)):
        return None
    # A fused optimizer's results are one list after the other.
    place = result % len(maker.args[0][1]) if maker.op.startswith(FUSED) else result
    parts = [arg[place] if tag in (2, 7) and place < len(arg) else (tag, arg) for tag, arg in maker.args]
    return [payload for tag, payload in parts if tag == 1]


def _update(spec: GraphSpec, value: int, leaf: int, parts: list[int] | None) -> int | None:
    """The value that begins to be written over a leaf, if the node of this value reads it for that.

    In place: what it changes. Of lists: what it has from the first one, or from any where an optimizer is fused; it may
    do no more than read that.
    """
    node = spec.nodes[value - len(spec.leaves)]
    if parts is None:
        return value if node.form == IN_PLACE else None
    group = int(node.args[0][1])
    fused = spec.nodes[group - len(spec.leaves)].op.startswith(FUSED)
    return group if fused or parts[:1] == [leaf] else None


class _DonatedReads:
    """Who reads donated leaves, and which of these reads each value comes from. Found when it is made."""

    def __init__(self, spec: GraphSpec, chained: Mapping[int, FusableOp]) -> None:
        self.products: dict[int, list[int]] = defaultdict(list)  # leaf -> values of the products that read it
        self.update: dict[int, int] = {}  # leaf -> the node that begins to write over it
        self.come_from = [0] * len(spec.leaves)  # of each value: a bit for each product that it needs
        self.bits: dict[int, int] = {}
        leaf_of = {leaf: leaf for leaf in spec.donated}  # of leaves, and of views of them
        together: dict[tuple[int, int], int] = {}  # (node of a chain, place in its lists) -> come_from
        for number, node in enumerate(spec.nodes):
            value = len(spec.leaves) + number
            if (member := chained.get(number)) is not None:
                self.update |= {leaf: number for leaf in member.lists[0] if leaf_of.get(leaf) == leaf}
                for part in list_partitions(node.outs):
                    together |= dict.fromkeys(((value, place) for place in part), self._together(member, part))
                self.come_from.append(0)
                continue
            if node.op == GETITEM and (key := (node.args[0][1], node.args[1][1])) in together:
                self.come_from.append(together[key])
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
                    self.products[leaf].append(value)
                    self.bits.setdefault(value, 1 << len(self.bits))
                elif operand == leaf and (update := _update(spec, value, leaf, parts)) is not None:
                    self.update[leaf] = update - len(spec.leaves)
            self.come_from.append(come_from | self.bits.get(value, 0))

    def _together(self, member: FusableOp, part: range) -> int:
        come_from = 0
        for values in member.lists:
            for place in part:
                come_from |= self.come_from[values[place]]
        return come_from

    def depends_on(self, value: int, product: int) -> bool:
        """Whether a value cannot be computed before that product."""
        return bool(self.come_from[value] & self.bits[product])


def _aliased_results(spec: GraphSpec) -> dict[int, int]:
    """Of each donated leaf the result that jax writes over it: the first of its shape and dtype that is not taken."""
    left = defaultdict(list)
    for root in reversed(spec.roots):
        left[spec.value_spec(root)].append(root)
    return {leaf: left[spec.leaves[leaf]].pop() for leaf in spec.donated if left[spec.leaves[leaf]]}


class LoweringSchedule(NamedTuple):
    """In which order the nodes of a program for the CPU are lowered, and what waits for what."""

    order: Sequence[int]
    #: Operations on lists that may be computed together, by the number of the node.
    chained: Mapping[int, FusableOp]
    #: Node -> (a leaf that it begins to write over, products to wait for), ...
    waits: Mapping[int, Sequence[tuple[int, Sequence[int]]]]


def make_schedule(spec: GraphSpec) -> LoweringSchedule:
    """Updates come last: one of all weights at once needs none of what it has to wait for."""
    chained = {} if dtypes.has_narrow_storage() or partitioning.partition_count() > 1 else fusable_ops(spec)
    if not spec.donated:
        return LoweringSchedule(range(len(spec.nodes)), chained, {})
    reads = _DonatedReads(spec, chained)
    order = _updates_last(spec, set(reads.update.values()))
    return LoweringSchedule(order, chained, _waits(spec, reads, order))


def _updates_last(spec: GraphSpec, updates: set[int]) -> list[int]:
    """The nodes in another order: updates, and what comes from them, after all else. Collectives keep their order."""
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
    place = {len(spec.leaves) + number: place for place, number in enumerate(order)}
    found: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for leaf, number in reads.update.items():
        if leaf not in results:
            continue
        others = [product for product in reads.products[leaf] if not reads.depends_on(results[leaf], product)]
        others = [p for p in others if not any(q != p and reads.depends_on(q, p) for q in others)]
        if others and max(place[other] for other in others) < place[len(spec.leaves) + number]:
            found[number].append((leaf, others))
    return found
