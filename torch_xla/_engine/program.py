"""A recorded graph as a jax function: the nodes' rules, applied in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from torch_xla._engine import decompose, dtypes
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.apply import LoweringError, apply
from torch_xla._engine.lowering.collectives import COLLECTIVES, apart
from torch_xla._engine.lowering.core import key_data
from torch_xla._engine.lowering.registry import Context, Number, Promise, Rule
from torch_xla._engine.lowering.view_writes import write_view

IN_PLACE, SCATTER = 1, 2


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node as the recorder describes it. ``args`` are (tag, payload) pairs; see Args in bindings.cpp."""

    op: str
    form: int  # 0: as the op says; 1: in place, the result has the first argument's dtype; 2: a write through a view op
    args: list[tuple[int, Any]]
    outs: list[Promise]
    is_list: bool


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A graph, spelled out. Values are numbered leaves first, then nodes in order; roots are value numbers."""

    leaves: list[tuple[tuple[int, ...], torch.dtype]]
    nodes: list[NodeSpec]
    roots: list[int]
    donated: list[int]


def is_collective(node: NodeSpec) -> bool:
    """Whether replicas exchange values in this node."""
    return node.op in COLLECTIVES


def describe(graph: Any) -> GraphSpec:
    """The GraphSpec of a recorder Graph."""
    nodes = [
        NodeSpec(op, form, args, [(shape, dtypes.FROM_CODE.get(code)) for shape, code in outs], is_list)
        for op, form, args, outs, is_list in graph.describe()
    ]
    leaves = [(tuple(shape), dtypes.FROM_CODE[code]) for shape, code in graph.leaf_shapes]
    return GraphSpec(leaves, nodes, list(graph.roots()), list(graph.donated))


class _Evaluation:
    """One trace: values so far, and the packed numbers. Lives while jax traces the function.

    The other replicas' graphs may differ from this one in what is not a collective; see ``apart``.
    """

    def __init__(self, floats: jax.Array, ints: jax.Array, leaves: tuple[jax.Array, ...]) -> None:
        self.floats, self.ints = floats, ints
        self.exchanged: jax.Array | None = None  # a result of the last collective
        self.values: list[Any] = list(leaves)

    def argument(self, arg: tuple[int, Any]) -> Any:
        tag, payload = arg
        if tag == 0:
            return payload
        if tag == 1:
            return self.values[payload]
        if tag in (2, 7):
            return [self.argument(a) for a in payload]
        if tag == 3:
            return Number(self.floats[payload], float)
        if tag == 4:
            return Number(self.ints[payload], int)
        if tag == 5:
            return Number(lax.complex(self.floats[payload], self.floats[payload + 1]), complex)
        return dtypes.FROM_CODE[payload]

    def run(self, node: NodeSpec) -> None:
        args = [self.argument(a) for a in node.args]
        if node.op == "torch_xla::getitem":
            self.values.append(args[0][args[1]])
            return
        if node.op == "torch_xla::seed":
            self.values.append(apply(RULES[node.op], args, [((), torch.int64)], Context(node.op, []))[0])
            return
        exchanging = is_collective(node)
        if exchanging:
            args[0] = apart(args[0], self.exchanged)
        results = call(node, args)
        if exchanging:
            self.exchanged = results[0]
        self.values.append(results if node.is_list or len(node.outs) > 1 else results[0])


def call(node: NodeSpec, args: list[Any]) -> list[Any]:
    """The results of one node, by its rule or by torch's decomposition of it. Raises LoweringError, naming the op."""
    if node.form == SCATTER:
        base, *rest, value, out = args
        rule = Rule(node.op, write_view)
        return apply(rule, [node.op, base, value, rest, out], node.outs, Context(node.op, node.outs))
    found = RULES.get(node.op)
    context = Context(node.op, node.outs)
    if found is not None and found.random:
        *args, seed, offset = args
        context = Context(node.op, node.outs, key_data(seed), offset)
    try:
        rule = found or Rule(node.op, decompose.function(node.op))
        return apply(rule, args, node.outs, context, convert=node.form == IN_PLACE)
    except LoweringError:
        raise
    except Exception as error:
        shown = ", ".join(_show(a) for a in args)
        raise LoweringError(f"{node.op}({shown}): cannot be built for XLA: {error}") from error


def _show(arg: Any) -> str:
    if isinstance(arg, jax.Array):
        return f"{np.dtype(arg.dtype)}{list(arg.shape)}"
    if isinstance(arg, list):
        return f"[{', '.join(_show(a) for a in arg)}]"
    return arg.kind.__name__ if isinstance(arg, Number) else repr(arg)


def function(spec: GraphSpec) -> Callable[..., list[jax.Array]]:
    """``f(floats, ints, *leaves) -> roots`` for jax to trace."""

    def graph(floats: jax.Array, ints: jax.Array, *leaves: jax.Array) -> list[jax.Array]:
        evaluation = _Evaluation(floats, ints, leaves)
        for node in spec.nodes:
            evaluation.run(node)
        return [evaluation.values[root] for root in spec.roots]

    return graph
