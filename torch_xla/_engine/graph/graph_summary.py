"""A compiled graph in brief: op names, wiring, shapes and constants, kept to compare a later graph with it.

Some 200 bytes an op; equal parts are shared. It needs no recorder and keeps no value alive. All that is mixed into the
recorder's key of a graph, or stands beside it in the key of a program (compilation/program_cache.py), is here: two graphs of
different keys have different summaries, and graph_diff.py can say how they differ.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.lowering.registry import Promise
from torch_xla._engine.lowering.rules.matmul import EXACT, Precision


class ScalarInput(str):
    """Stands for a number that is an input of the program: any value of its type will do."""

    __slots__ = ()


_OPERANDS = {3: ScalarInput("float"), 4: ScalarInput("int"), 5: ScalarInput("complex")}
_ONE_FOR_ALL = {
    3: ScalarInput("the same float"),
    4: ScalarInput("the same int"),
}  # elements of a list that are one operand

Leaf = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class OpSummary:
    """One op.

    Attributes:
      inputs: value numbers, leaves first.
      baked: (argument position, value) of what is part of the program.
      line: of the user's, if known.
      form: 0; specs.IN_PLACE or specs.SCATTER.
      taken: (argument position, how many of the inputs it takes) of arguments that are tensors.
      default_dtype: torch's, when the op was recorded.
    """

    op: str
    inputs: tuple[int, ...]
    baked: tuple[tuple[int, Any], ...]
    outs: tuple[Promise, ...]
    line: str | None = None
    form: int = 0
    taken: tuple[tuple[int, int], ...] = ()
    default_dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """The op and its form: ``aten::add.Tensor in place``."""
        return self.op + _FORMS[self.form]


_FORMS = {0: "", graph_spec.IN_PLACE: " in place", graph_spec.SCATTER: " written through"}


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One graph. Numbers of values: leaves first, then ops in order.

    Attributes:
      histogram: how often it has each op, by name.
      key: the recorder's, of all above but what is local to a process; empty for a graph that was not recorded.
      layouts: of each leaf, how it lies on the devices (base/sharding_ids.py).
      precision: of its products.
      place: for whom it is compiled.
    """

    leaves: tuple[Leaf, ...]
    ops: tuple[OpSummary, ...]
    roots: tuple[int, ...]
    donated: tuple[int, ...]
    histogram: Counter[str] = field(compare=False)
    key: bytes = b""
    layouts: tuple[int, ...] = ()
    precision: Precision = EXACT
    place: str = ""

    def is_same_program(self, other: GraphSummary) -> bool:
        """Whether one program serves both."""
        beside = (self.precision, self.place) == (other.precision, other.place)
        return beside and (self.key == other.key if self.key and other.key else self == other)

    def first_user(self, leaf: int) -> OpSummary | None:
        """The first op that has the leaf as an input."""
        return next((op for op in self.ops if leaf in op.inputs), None)


def summarize(spec: graph_spec.GraphSpec, key: bytes = b"", place: str = "") -> GraphSummary:
    """The graph of ``spec`` in brief; its key, and for whom it is compiled."""
    shared: dict[Any, Any] = {}
    ops = tuple(_op(node, shared) for node in spec.nodes)
    histogram = Counter(op.name for op in ops)
    results, layouts = (tuple(spec.roots), tuple(spec.donated)), tuple(spec.leaf_shardings)
    return GraphSummary(tuple(spec.leaves), ops, *results, histogram, key, layouts, spec.precision, place)


def _op(node: graph_spec.NodeSpec, shared: dict[Any, Any]) -> OpSummary:
    inputs: list[int] = []
    baked, taken = [], []
    for position, arg in enumerate(node.args):
        before = len(inputs)
        value = _constant(arg, inputs)
        if value is not None:
            baked.append((position, value))
        if arg[0] in (1, 2):
            taken.append((position, len(inputs) - before))
    parts = (tuple(baked), tuple(node.outs), tuple(taken))
    constants, outs, tensors = shared.setdefault(repr(parts), parts)
    # A node has an origin where somebody captures it, which XLA_IR_DEBUG=1 asks for.
    line = None if node.origin is None else node.origin.line
    return OpSummary(node.op, tuple(inputs), constants, outs, line, node.form, tensors, node.default_dtype)


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
        is_one = len(payload) > 1 and payload[0][0] in _ONE_FOR_ALL and all(a == payload[0] for a in payload)
        return tuple(_ONE_FOR_ALL[a[0]] if is_one else _constant(a, inputs) for a in payload)
    return dtypes.FROM_CODE[payload] if tag == 6 else _OPERANDS[tag]
