"""Use AOTAutograd partitioners (``partition_fn``) as save policies for joint_graph.py.

A partitioner splits a joint torch.fx graph into a forward and a backward graph. Only its choice of residuals is used:
the outputs of its forward graph beyond the function's results.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torch_xla._engine.base import dtypes
from torch_xla._engine.capture.joint_graph import GROUP, SEED, JointGraph, Keep, save_all
from torch_xla._engine.graph.graph_spec import FUNCTIONAL, LIST_TAGS, ArgTag, NodeSpec

#: ``partition(joint graph, its inputs, num_fwd_outputs=) -> (forward graph, backward graph)``.
Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]

DEFAULT = "default_partition"


@functools.cache
def save_policy_for(partition: Partition) -> Keep:
    """Return the save policy of an AOTAutograd partitioner; the default partitioner saves what autograd would."""
    if getattr(partition, "__name__", "") == DEFAULT:
        return save_all
    return lambda graph: _choice(graph, partition)


def _choice(graph: JointGraph, partition: Partition) -> Callable[[int], bool]:
    joint, inputs = _JointFxGraph(graph).module()
    forward, backward = partition(joint, inputs, num_fwd_outputs=len(graph.results))
    known = {node.name for node in joint.graph.nodes}
    for part in (forward, backward):
        added = [n.name for n in part.graph.nodes if n.op == "call_function" and n.name not in known]
        if added:
            raise ValueError(
                f"partition_fn {getattr(partition, '__name__', partition)} adds operations "
                f"({', '.join(added[:5])}): it may only choose which forward values are saved for backward"
            )
    (output,) = (n for n in forward.graph.nodes if n.op == "output")
    saved_names = {n.name for n in output.args[0][len(graph.results) :] if isinstance(n, fx.Node)}
    return lambda value: _name(value) in saved_names


def _name(value: int) -> str:
    return f"value_{value}"


class _JointFxGraph:
    """A joint graph of a function and its gradient as a torch.fx graph."""

    def __init__(self, graph: JointGraph) -> None:
        self._graph, self._spec = graph, graph.spec
        self._fx = fx.Graph()
        self._values: list[Any] = []

    def module(self) -> tuple[fx.GraphModule, tuple[list[Any], list[Any]]]:
        """Return the module and its inputs (primals, tangents) as tensors without values."""
        primals: list[Any] = []
        tangents: list[Any] = []
        leaves: dict[int, fx.Node] = {}
        by_place = sorted((place, value) for value, place in enumerate(self._graph.order) if place >= 0)
        for place, value in by_place:
            is_primal = place < self._graph.inputs
            node = self._fx.placeholder(f"{'primals' if is_primal else 'tangents'}_{place + 1}")
            node.meta["val"] = _meta(*self._spec.leaves[value])
            (primals if is_primal else tangents).append(node.meta["val"])
            leaves[value] = node
        for value, place in enumerate(self._graph.order):
            self._values.append(leaves[value] if place >= 0 else self._constant(value))
        for spec in self._spec.nodes:
            self._values.append(self._node(spec, len(self._values)))
        results = [self._values[value] for value in (*self._graph.results, *self._graph.gradients)]
        self._fx.output(results).meta["desc"] = [None] * len(results)
        return fx.GraphModule(torch.nn.Module(), self._fx), (primals, tangents)

    def _constant(self, value: int) -> fx.Node:
        shape, dtype = self._spec.leaves[value]
        node = self._fx.create_node("call_function", torch.ops.aten.zeros.default, (list(shape),), name=_name(value))
        node.meta["val"] = _meta(shape, dtype)
        return node

    def _node(self, spec: NodeSpec, value: int) -> Any:
        if spec.op == SEED:
            return 0
        if spec.op == GROUP:
            (_, group), (_, place) = spec.args
            node = self._fx.create_node(
                "call_function", operator.getitem, (self._values[group], place), name=_name(value)
            )
            node.meta["val"] = self._values[group].meta["val"][place]
            return node
        args = tuple(self._argument(a) for a in spec.args)
        node = self._fx.create_node("call_function", _target(spec), args, name=_name(value))
        results = [_meta(shape, dtype) for shape, dtype in spec.outs]
        node.meta["val"] = results if spec.is_list or len(results) > 1 else results[0]
        return node

    def _argument(self, arg: tuple[int, Any]) -> Any:
        tag, payload = arg
        if tag == ArgTag.CONSTANT:
            return payload if isinstance(payload, (int, float, bool, str, complex, type(None))) else None
        if tag == ArgTag.VALUE:
            return self._values[payload]
        if tag in LIST_TAGS:
            return [self._argument(a) for a in payload]
        if tag in (ArgTag.FLOAT_INPUT, ArgTag.INT_INPUT):
            return self._graph.numbers[tag - ArgTag.FLOAT_INPUT][payload].item()
        return dtypes.FROM_CODE.get(payload) if tag == ArgTag.DTYPE else None


def _meta(shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor | None:
    return None if dtype is None else torch.empty(shape, dtype=dtype, device="meta")


def _target(spec: NodeSpec) -> Callable[..., Any]:
    """Return the torch operator of a node, from which partitioners estimate the cost of recomputation."""
    space, _, rest = spec.op.partition("::")
    name, _, overload = rest.partition(".")
    if spec.schema_kind == FUNCTIONAL:
        try:
            found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, space), name), overload or "default")
            return found
        except (AttributeError, RuntimeError):
            pass
    return _opaque_target(spec.op)


@functools.cache
def _opaque_target(op: str) -> Callable[..., Any]:
    def operation(*args: Any) -> None:
        raise NotImplementedError(op)

    operation.__name__ = operation.__qualname__ = op.replace("::", "_").replace(".", "_")
    return operation
