"""Summarize a compiled graph for later comparison: operators, wiring, shapes, constants.

A summary takes about 200 bytes per op (equal parts are shared), needs no recorder and retains no tensor. It contains
everything that enters a program's cache key: what the recorder mixes into the graph key, and what
compilation/program_cache.py adds to it. So two graphs with different keys have different summaries, and graph_diff.py
can report what differs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.graph.graph_spec import ArgTag
from torch_xla._engine.lowering.registry import TensorSpec
from torch_xla._engine.lowering.rules.matmul import EXACT, Precision


class ScalarInput(str):
    """Placeholder for a number that is an input of the program, not a constant; it names the type of the number."""

    __slots__ = ()


_SCALAR_INPUTS: dict[int, ScalarInput] = {
    ArgTag.FLOAT_INPUT: ScalarInput("float"),
    ArgTag.INT_INPUT: ScalarInput("int"),
    ArgTag.COMPLEX_INPUT: ScalarInput("complex"),
}
#: For lists whose elements are all the same input.
_SHARED_SCALAR_INPUTS: dict[int, ScalarInput] = {
    ArgTag.FLOAT_INPUT: ScalarInput("the same float"),
    ArgTag.INT_INPUT: ScalarInput("the same int"),
}

Leaf = tuple[tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class OpSummary:
    """One operation of a graph.

    Attributes:
      inputs: the numbers of its input values: graph inputs first, then results of ops.
      baked: (argument position, value) of each argument that is a constant of the program.
      outs: the output spec of each result: shape and dtype.
      line: the user's source line, None where it is unknown.
      schema_kind: FUNCTIONAL, IN_PLACE or SCATTER of graph_spec.
      tensor_counts: (argument position, number of input values) of each tensor argument.
      default_dtype: torch's default dtype when the op was recorded.
    """

    op: str
    inputs: tuple[int, ...]
    baked: tuple[tuple[int, Any], ...]
    outs: tuple[TensorSpec, ...]
    line: str | None = None
    schema_kind: int = graph_spec.FUNCTIONAL
    tensor_counts: tuple[tuple[int, int], ...] = ()
    default_dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        """The op and its schema kind: ``aten::add.Tensor in place``."""
        return self.op + _SCHEMA_KIND_SUFFIXES[self.schema_kind]


_SCHEMA_KIND_SUFFIXES = {
    graph_spec.FUNCTIONAL: "",
    graph_spec.IN_PLACE: " in place",
    graph_spec.SCATTER: " through a view",
}


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """The summary of a graph. Values are numbered: first the inputs ("leaves"), then the ops in topological order.

    Attributes:
      leaves: the shape and dtype of each graph input.
      roots: the value numbers of the results.
      donated: the indices of the donated inputs.
      histogram: the number of occurrences of each op, by name.
      key: the recorder's hash of the fields above, except for process-local data; empty if the graph was not recorded.
      layouts: the sharding ID of each input (base/sharding_ids.py).
      precision: the matmul precision.
      place: the placement that the graph is compiled for, as reports name it.
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
        """Return whether one compiled program computes both graphs."""
        same_options = (self.precision, self.place) == (other.precision, other.place)
        return same_options and (self.key == other.key if self.key and other.key else self == other)

    def first_user(self, leaf: int) -> OpSummary | None:
        """Return the first op that reads a graph input; None if no op reads it."""
        return next((op for op in self.ops if leaf in op.inputs), None)


def summarize(spec: graph_spec.GraphSpec, key: bytes = b"", place: str = "") -> GraphSummary:
    """Return the summary of a graph with the recorder's key, compiled for the placement ``place``."""
    shared: dict[Any, Any] = {}
    ops = tuple(_op(node, shared) for node in spec.nodes)
    histogram = Counter(op.name for op in ops)
    results, layouts = (tuple(spec.roots), tuple(spec.donated)), tuple(spec.leaf_shardings)
    return GraphSummary(tuple(spec.leaves), ops, *results, histogram, key, layouts, spec.precision, place)


def _op(node: graph_spec.NodeSpec, shared: dict[Any, Any]) -> OpSummary:
    inputs: list[int] = []
    baked, tensor_counts = [], []
    for position, arg in enumerate(node.args):
        before = len(inputs)
        value = _constant(arg, inputs)
        if value is not None:
            baked.append((position, value))
        if arg[0] in (ArgTag.VALUE, ArgTag.VALUE_LIST):
            tensor_counts.append((position, len(inputs) - before))
    parts = (tuple(baked), tuple(node.outs), tuple(tensor_counts))
    constants, outs, tensors = shared.setdefault(repr(parts), parts)
    # Nodes have a source location only while locations are captured, for example with XLA_IR_DEBUG=1.
    line = None if node.origin is None else node.origin.line
    return OpSummary(node.op, tuple(inputs), constants, outs, line, node.schema_kind, tensors, node.default_dtype)


def _constant(arg: tuple[int, Any], inputs: list[int]) -> Any:
    """Return the constant part of an argument, None if it has none; append the values that it reads to ``inputs``."""
    tag, payload = arg
    if tag == ArgTag.CONSTANT:
        return tuple(payload) if isinstance(payload, list) else payload
    if tag == ArgTag.VALUE:
        inputs.append(payload)
        return None
    if tag == ArgTag.VALUE_LIST:
        for reference in payload:
            _constant(reference, inputs)
        present = tuple(reference[0] == ArgTag.VALUE for reference in payload)  # Tensor?[]: None elements are constants
        return None if all(present) else present
    if tag == ArgTag.SCALAR_LIST:
        is_one = len(payload) > 1 and payload[0][0] in _SHARED_SCALAR_INPUTS and all(a == payload[0] for a in payload)
        return tuple(_SHARED_SCALAR_INPUTS[a[0]] if is_one else _constant(a, inputs) for a in payload)
    return dtypes.FROM_CODE[payload] if tag == ArgTag.DTYPE else _SCALAR_INPUTS[tag]
