"""Convert a recorded graph to Python data: ``GraphSpec``, the input of lowering, of the caches and of diagnostics."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.registry import TensorSpec
from torch_xla._engine.lowering.rules.collectives import COLLECTIVES
from torch_xla._engine.lowering.rules.matmul import EXACT, Precision
from torch_xla._engine.recorder import source_info
from torch_xla._engine.recorder.source_info import Origin

#: The schema kind of a node: how its operator returns its result; SchemaKind in recorder/csrc/graph/serialize.cpp.
#: FUNCTIONAL: a new tensor. IN_PLACE: recorded as the functional operator; the result is converted to the dtype of the
#: first argument. SCATTER: a write through a view operator; the result is the base tensor with that view replaced.
FUNCTIONAL, IN_PLACE, SCATTER = 0, 1, 2


class ArgTag(enum.IntEnum):
    """The tag of an argument ``(tag, payload)`` of a node. Mirrors ArgTag in recorder/csrc/graph/serialize.cpp.

        tag            payload                                       example
        CONSTANT       a Python value that is part of the program    dim=-1, "mean", None
        VALUE          the number of an input or of a result         a Tensor argument
        VALUE_LIST     arguments VALUE, or CONSTANT with None        Tensor[], Tensor?[]
        FLOAT_INPUT    an index into the packed floats               add(x, 0.1)
        INT_INPUT      an index into the packed integers             add(x, 3), a random seed
        COMPLEX_INPUT  the index of the first of two packed floats   mul(x, 2j)
        DTYPE          the number of a ScalarType                    to(torch.bfloat16)
        SCALAR_LIST    arguments CONSTANT, FLOAT_INPUT, INT_INPUT    Scalar[] of a foreach operator

    The recorder passes plain integers, which compare equal to these members.
    """

    CONSTANT = 0
    VALUE = 1
    VALUE_LIST = 2
    FLOAT_INPUT = 3
    INT_INPUT = 4
    COMPLEX_INPUT = 5
    DTYPE = 6
    SCALAR_LIST = 7


#: The tags whose payload is a list of arguments.
LIST_TAGS = (ArgTag.VALUE_LIST, ArgTag.SCALAR_LIST)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One recorded operation.

    Attributes:
      schema_kind: FUNCTIONAL, IN_PLACE or SCATTER.
      args: ``(tag, payload)`` pairs, see ArgTag.
      outs: the output spec of each result: shape and dtype.
      is_list: whether the operator returns a list.
      origin: the source location; None unless source locations are captured (recorder/source_info.py).
      default_dtype: torch's default dtype when the operation was recorded.
    """

    op: str
    schema_kind: int
    args: list[tuple[int, Any]]
    outs: list[TensorSpec]
    is_list: bool
    origin: Origin | None = None
    default_dtype: torch.dtype = torch.float32


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """One recorded graph. Values are numbered: first the inputs ("leaves"), then the nodes in topological order.

    Attributes:
      leaves: the shape and dtype of each graph input.
      roots: the value numbers of the results.
      donated: the indices of the inputs whose buffers the program may reuse.
      precision: the matmul precision.
      leaf_origins: the source location of each input, None where it is unknown.
      root_shardings: a sharding ID for each result (base/sharding_ids.py); 0 lets the compiler choose.
      floats: the number of packed float inputs.
      ints: the number of packed integer inputs.
      leaf_shardings: a sharding ID for each input; 0 is a single device.
    """

    leaves: list[tuple[tuple[int, ...], torch.dtype]]
    nodes: list[NodeSpec]
    roots: list[int]
    donated: list[int]
    precision: Precision = EXACT
    leaf_origins: list[Origin | None] = field(default_factory=list)
    root_shardings: list[int] = field(default_factory=list)
    floats: int = 0
    ints: int = 0
    leaf_shardings: list[int] = field(default_factory=list)

    def value_spec(self, value: int) -> TensorSpec:
        """Return the declared shape and dtype of a value; of a node with several results, those of the first."""
        if value < len(self.leaves):
            return self.leaves[value]
        return self.nodes[value - len(self.leaves)].outs[0]


def operands(node: NodeSpec) -> list[int]:
    """Return the numbers of the values that a node reads, in argument order."""

    def values(arg: tuple[int, Any]) -> list[int]:
        tag, payload = arg
        if tag == ArgTag.VALUE:
            return [payload]
        return [n for a in payload for n in values(a)] if tag in LIST_TAGS else []

    return [n for arg in node.args for n in values(arg)]


def is_collective(node: NodeSpec) -> bool:
    """Return whether the node is a collective operation."""
    return node.op in COLLECTIVES


def describe_graph(graph: Any, precision: Precision = EXACT) -> GraphSpec:
    """Return the GraphSpec of a recorder Graph, to be compiled with the given matmul precision."""
    nodes = [
        NodeSpec(
            op,
            schema_kind,
            args,
            [(shape, dtypes.FROM_CODE.get(code)) for shape, code in outs],
            is_list,
            source_info.origin_from_id(origin),
            # torch accepts default dtypes that no device supports; recording rejects an op that returns one of them.
            dtypes.FROM_CODE.get(default, torch.float32),
        )
        for op, schema_kind, args, outs, is_list, origin, default in graph.serialize()
    ]
    leaves = [(tuple(shape), dtypes.FROM_CODE[code]) for shape, code in graph.leaf_shapes]
    leaf_origins = [source_info.origin_from_id(number) for number in graph.leaf_origins]
    roots, donated = list(graph.roots()), list(graph.donated)
    shardings, (floats, ints) = list(graph.root_shardings), graph.number_counts
    layouts = list(graph.leaf_shardings)
    return GraphSpec(leaves, nodes, roots, donated, precision, leaf_origins, shardings, floats, ints, layouts)
