"""A recorded graph as data: what the recorder tells of it, spelled out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.registry import Promise
from torch_xla._engine.lowering.rules.collectives import COLLECTIVES
from torch_xla._engine.lowering.rules.matmul import EXACT, Precision
from torch_xla._engine.recorder import source_info
from torch_xla._engine.recorder.source_info import Origin

IN_PLACE, SCATTER = 1, 2


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as the recorder describes it. ``args`` are (tag, payload) pairs; see Args in bindings.cpp."""

    op: str
    form: int  # 0: as the op says; 1: in place, the result has the first argument's dtype; 2: a write through a view op
    args: list[tuple[int, Any]]
    outs: list[Promise]
    is_list: bool
    origin: Origin | None = None  # where it was recorded; None unless that is captured (source_info.py)
    default_dtype: torch.dtype = torch.float32  # torch's, when it was recorded


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A graph, spelled out. Values are numbered leaves first, then nodes in order; roots are value numbers."""

    leaves: list[tuple[tuple[int, ...], torch.dtype]]
    nodes: list[NodeSpec]
    roots: list[int]
    donated: list[int]
    precision: Precision = EXACT
    leaf_origins: list[Origin | None] = field(default_factory=list)  # where each leaf was made, as far as known
    root_shardings: list[int] = field(default_factory=list)  # see sharding_ids.py; 0: as the compiler likes
    floats: int = 0  # how many numbers are operands, packed in two arrays
    ints: int = 0
    leaf_shardings: list[int] = field(default_factory=list)  # how each leaf lies; 0: on one device

    def value_spec(self, value: int) -> Promise:
        """What the value of that number is promised to be."""
        if value < len(self.leaves):
            return self.leaves[value]
        return self.nodes[value - len(self.leaves)].outs[0]


def operands(node: NodeSpec) -> list[int]:
    """The numbers of the values that a node reads."""

    def of(arg: tuple[int, Any]) -> list[int]:
        tag, payload = arg
        if tag == 1:
            return [payload]
        return [n for a in payload for n in of(a)] if tag in (2, 7) else []

    return [n for arg in node.args for n in of(arg)]


def is_collective(node: NodeSpec) -> bool:
    """Whether replicas exchange values in this node."""
    return node.op in COLLECTIVES


def describe_graph(graph: Any, precision: Precision = EXACT) -> GraphSpec:
    """The GraphSpec of a recorder Graph, whose products are to be as precise as given."""
    nodes = [
        NodeSpec(
            op,
            form,
            args,
            [(shape, dtypes.FROM_CODE.get(code)) for shape, code in outs],
            is_list,
            source_info.origin_from_id(origin),
            # torch takes dtypes as the default that no device has; an op that returned one was refused.
            dtypes.FROM_CODE.get(default, torch.float32),
        )
        for op, form, args, outs, is_list, origin, default in graph.serialize()
    ]
    leaves = [(tuple(shape), dtypes.FROM_CODE[code]) for shape, code in graph.leaf_shapes]
    leaf_origins = [source_info.origin_from_id(number) for number in graph.leaf_origins]
    roots, donated = list(graph.roots()), list(graph.donated)
    shardings, (floats, ints) = list(graph.root_shardings), graph.number_counts
    layouts = list(graph.leaf_shardings)
    return GraphSpec(leaves, nodes, roots, donated, precision, leaf_origins, shardings, floats, ints, layouts)
