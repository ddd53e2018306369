"""What lies in memory in a program for the CPU, and when: XLA's compiler there has to be told.

It fuses a chain of any length, and copies a value that is written over where it cannot see that all have read it. So
long chains are cut, and the update of a weight waits for the product that makes the gradient of the layer's input: both
read the weight, neither needs the other, and which runs first is decided after the copies are made.
"""

from __future__ import annotations

import re
from collections import defaultdict

from torch_xla._engine.graph.specs import IN_PLACE, GraphSpec, NodeSpec, operands
from torch_xla._engine.lowering.views import VIEWS

#: After so many operations in a row, views apart, a value is written to memory in a program for the CPU. XLA's compiler
#: there fuses a chain of any length, and into each of several fusions again: its time grows with the square.
DEEPEST = 16
VIEWS_OF_ONE = frozenset(f"aten::{name}" for name in VIEWS) | {"aten::_unsafe_view"}

#: What XLA does not fuse: their results lie in memory.
NOT_FUSED = re.compile(r"aten::(mm|bmm|addmm|baddbmm|linear|convolution|convolution_backward|_scaled_dot_product_\w+)$")


def _needed(spec: GraphSpec, node: NodeSpec) -> list[int]:
    """The values that a node needs: of an operation on lists, one of its results needs what is in that place only."""
    if node.op != "torch_xla::getitem":
        return operands(node)
    (_, group), (_, place) = node.args
    maker = spec.nodes[group - len(spec.leaves)]
    if not maker.op.startswith("aten::_foreach_"):
        return [group]
    parts = [arg[place] for tag, arg in maker.args if tag in (2, 7) and place < len(arg)]
    return [payload for tag, payload in parts if tag == 1]


class _Reads:
    """Who reads donated leaves, and which of these reads each value comes from. Found when it is made."""

    def __init__(self, spec: GraphSpec) -> None:
        self.products: dict[int, list[int]] = defaultdict(list)  # leaf -> values of the products that read it
        self.update: dict[int, int] = {}  # leaf -> the node that begins to write over it
        self.come_from = [0] * len(spec.leaves)  # of each value: a bit for each product that it needs
        self.bits: dict[int, int] = {}
        leaf_of = {leaf: leaf for leaf in spec.donated}  # of leaves, and of views of them
        for number, node in enumerate(spec.nodes):
            value = len(spec.leaves) + number
            come_from = 0
            for operand in _needed(spec, node):
                come_from |= self.come_from[operand]
                if (leaf := leaf_of.get(operand)) is None:
                    continue
                if node.op in VIEWS_OF_ONE:
                    leaf_of[value] = leaf
                elif NOT_FUSED.match(node.op):
                    self.products[leaf].append(value)
                    self.bits.setdefault(value, 1 << len(self.bits))
                elif operand == leaf and node.form == IN_PLACE:
                    self.update[leaf] = number
            self.come_from.append(come_from | self.bits.get(value, 0))

    def need(self, value: int, product: int) -> bool:
        """Whether a value cannot be computed before that product."""
        return bool(self.come_from[value] & self.bits[product])


def _results(spec: GraphSpec) -> dict[int, int]:
    """Of each donated leaf the result that jax writes over it: the first of its shape and dtype that is not taken."""
    left = defaultdict(list)
    for root in reversed(spec.roots):
        left[spec.promise(root)].append(root)
    return {leaf: left[spec.leaves[leaf]].pop() for leaf in spec.donated if left[spec.leaves[leaf]]}


def waits(spec: GraphSpec) -> dict[int, list[tuple[int, list[int]]]]:
    """Node -> (a leaf that it begins to write over, products to wait for), ..."""
    if not spec.donated:
        return {}
    reads, results = _Reads(spec), _results(spec)
    found: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for leaf, number in reads.update.items():
        if leaf not in results:
            continue
        others = [product for product in reads.products[leaf] if not reads.need(results[leaf], product)]
        others = [p for p in others if not any(q != p and reads.need(q, p) for q in others)]
        if others and max(others) < len(spec.leaves) + number:
            found[number].append((leaf, others))
    return found
