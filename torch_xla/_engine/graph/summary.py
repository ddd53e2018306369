"""A compiled graph in brief: op names, wiring, shapes and constants, kept to compare a later graph with it.

Some 200 bytes an op; equal parts are shared. It needs no recorder and keeps no value alive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.graph import program
from torch_xla._engine.lowering.registry import Promise


class Operand(str):
    """Stands for a number that is an input of the program: any value of its type will do."""

    __slots__ = ()


_OPERANDS = {3: Operand("float"), 4: Operand("int"), 5: Operand("complex")}

Leaf = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class OpSummary:
    """One op. ``inputs`` are value numbers, leaves first; ``baked`` (argument position, value); ``line`` if known."""

    op: str
    inputs: tuple[int, ...]
    baked: tuple[tuple[int, Any], ...]
    outs: tuple[Promise, ...]
    line: str | None = None


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One graph. Numbers of values: leaves first, then ops in order."""

    leaves: tuple[Leaf, ...]
    ops: tuple[OpSummary, ...]
    roots: tuple[int, ...]
    donated: tuple[int, ...]
    histogram: Counter[str] = field(compare=False)

    def first_user(self, leaf: int) -> OpSummary | None:
        """The first op that has the leaf as an input."""
        return next((op for op in self.ops if leaf in op.inputs), None)


def summarize(spec: program.GraphSpec) -> GraphSummary:
    """The graph of ``spec`` in brief."""
    shared: dict[Any, Any] = {}
    ops = []
    for node in spec.nodes:
        inputs: list[int] = []
        baked = [(i, value) for i, arg in enumerate(node.args) if (value := _constant(arg, inputs)) is not None]
        parts = (tuple(baked), tuple(node.outs))
        constants, outs = shared.setdefault(repr(parts), parts)
        # A node has an origin where somebody captures it, which XLA_IR_DEBUG=1 asks for.
        line = None if node.origin is None else node.origin.line
        ops.append(OpSummary(node.op, tuple(inputs), constants, outs, line))
    histogram = Counter(op.op for op in ops)
    return GraphSummary(tuple(spec.leaves), tuple(ops), tuple(spec.roots), tuple(spec.donated), histogram)


def _constant(arg: tuple[int, Any], inputs: list[int]) -> Any:
    """What of an argument is part of the program, None where nothing is; its references are added to ``inputs``."""
    tag, payload = arg
    if tag == 0:
        return tuple(payload) if isinstance(payload, list) else payload
    if tag == 1:
        inputs.append(payload)
        return None
    if tag == 2:
        for reference in payload:
            _constant(reference, inputs)
        there = tuple(reference[0] == 1 for reference in payload)  # of Tensor?[], which are given
        return None if all(there) else there
    if tag == 7:
        return tuple(_constant(a, inputs) for a in payload)
    return dtypes.FROM_CODE[payload] if tag == 6 else _OPERANDS[tag]
