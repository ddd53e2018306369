"""Finds the regions of an exported graph that become one ``stablehlo.composite``, between marked inputs and outputs.

A mark is an operator that returns its input. ``composite_regions`` collects the nodes between the marks of a group.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch.fx import Graph, Node

from torch_xla._engine.compat import dispatcher
from torch_xla._engine.lowering.registry import lower

NAME = "torch_xla::mark_pattern"


@lower(NAME)
def _mark(x: jax.Array, name: str, group: int, position: int, output: bool, attributes: str) -> jax.Array:
    return x


@dataclass(frozen=True)
class CompositeRegion:
    """The nodes of one composite, which computes from its marked inputs and from values captured from outside."""

    name: str
    attributes: dict[str, Any]
    inputs: list[Node]
    outside: list[Node]
    inside: list[Node]  # in order
    outputs: list[Node]


def composite_regions(graph: Graph) -> list[CompositeRegion]:
    """Return the composites of a graph. Raises ValueError if a group has no marked inputs or no marked outputs."""
    marks: dict[int, list[Node]] = {}
    for node in graph.nodes:
        schema = dispatcher.schema_or_none(node.target)
        if schema is not None and schema.name == NAME:
            marks.setdefault(int(str(node.args[2])), []).append(node)
    return [_region(graph, group) for group in marks.values()]


def _region(graph: Graph, group: list[Node]) -> CompositeRegion:
    by_position = sorted(group, key=lambda node: int(str(node.args[3])))
    inputs = [node for node in by_position if not node.args[4]]
    outputs = [node for node in by_position if node.args[4]]
    name = str(group[0].args[1])
    if not inputs or not outputs:
        raise ValueError(f"the composite {name!r} has no marked {'outputs' if inputs else 'inputs'} that are used")
    inside: set[Node] = set()
    outside: dict[Node, None] = {}
    waiting = [node for mark in outputs for node in mark.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in inside or node in outside or node in inputs:
            continue
        if node.op != "call_function" or not _depends_on(node, inputs):
            outside[node] = None
            continue
        inside.add(node)
        waiting += node.all_input_nodes
    order = [node for node in graph.nodes if node in inside]
    return CompositeRegion(name, json.loads(str(group[0].args[5])), inputs, list(outside), order, outputs)


def _depends_on(node: Node, inputs: list[Node]) -> bool:
    seen, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one in inputs:
            return True
        if one not in seen:
            seen.add(one)
            waiting += one.all_input_nodes
    return False


def _identity(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x.clone()


_library = torch.library.Library("torch_xla", "FRAGMENT")
_schema = "mark_pattern(Tensor input, str name, int group, int position, bool output, str attributes) -> Tensor"


def define() -> None:
    """Register the operator with torch, once; eagerly it returns a copy."""
    _library.impl(_library.define(_schema), _identity, "CompositeExplicitAutograd")
    torch.library.register_autograd(NAME, lambda ctx, grad: (grad, None, None, None, None, None), lib=_library)
