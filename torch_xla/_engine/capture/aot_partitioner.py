"""Use AOTAutograd partitioners (``partition_fn``) as save policies for joint_graph.py.

A partitioner splits a joint torch.fx graph into a forward and a backward graph. Only its choice of residuals is used:
the outputs of its forward graph beyond the function's results. It may move these to host memory:
``torch.ops.xla.place_to_host`` of an output in forward, ``place_to_device`` of a placeholder in backward.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torch_xla._engine.base import dtypes
from torch_xla._engine.capture.custom_ops import CustomOpCall
from torch_xla._engine.capture.joint_graph import GROUP, SEED, JointGraph, Keep, Residuals, save_all
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


#: Operators that a partitioner may add.
_TO_HOST, _TO_DEVICE = "xla.place_to_host.default", "xla.place_to_device.default"


def _choice(graph: JointGraph, partition: Partition) -> Residuals:
    joint, inputs = _JointFxGraph(graph).module()
    forward, backward = partition(joint, inputs, num_fwd_outputs=len(graph.results))
    known = {node.name for node in joint.graph.nodes}
    for part, allowed in ((forward, _TO_HOST), (backward, _TO_DEVICE)):
        calls = [n for n in part.graph.nodes if n.op == "call_function" and n.name not in known]
        added = [n.name for n in calls if str(n.target) != allowed]
        if added:
            raise ValueError(
                f"partition_fn {getattr(partition, '__name__', partition)} adds operations "
                f"({', '.join(added[:5])}): it may only choose which forward values are saved for backward, and "
                "move these to host memory (torch.ops.xla.place_to_host of an output in forward, place_to_device of a "
                "placeholder in backward)"
            )
    (output,) = (n for n in forward.graph.nodes if n.op == "output")
    saved = [n for n in output.args[0][len(graph.results) :] if isinstance(n, fx.Node)]
    moved = {source.name for n in saved if str(n.target) == _TO_HOST for source in n.all_input_nodes}
    saved_names = moved.union(n.name for n in saved)
    first = len(graph.spec.leaves)
    on_host = frozenset(v for v in range(first, first + len(graph.spec.nodes)) if _name(v) in moved)
    if len(on_host) < len(moved):
        inputs_moved = sorted(moved - {_name(value) for value in on_host})
        raise ValueError(
            f"partition_fn {getattr(partition, '__name__', partition)} moves inputs of the function to host memory "
            f"({', '.join(inputs_moved)}): only values that the function computes can be moved"
        )
    return Residuals(lambda value: _name(value) in saved_names, on_host)


def _name(value: int) -> str:
    return f"value_{value}"


class _JointFxGraph:
    """A joint graph of a function and its gradient as a torch.fx graph."""

    def __init__(self, graph: JointGraph) -> None:
        self._graph, self._spec = graph, graph.spec
        self._fx = fx.Graph()
        self._values: list[Any] = []
        self._calls: dict[int, fx.Node] = {}  # by the id of the CustomOpCall: the tuple of its results

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
        custom = self._custom_results()
        for spec in self._spec.nodes:
            value = len(self._values)
            made = self._node(spec, value) if value not in custom else self._custom_node(spec, value, *custom[value])
            self._values.append(made)
        results = [self._values[value] for value in (*self._graph.results, *self._graph.gradients)]
        self._fx.output(results).meta["desc"] = [None] * len(results)
        if custom:  # the nodes that their kernels recorded
            self._fx.eliminate_dead_code()
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

    def _custom_results(self) -> dict[int, tuple[CustomOpCall, int]]:
        """Return the values that custom operators return: the call, and the place among its results."""
        found: dict[int, tuple[CustomOpCall, int]] = {}
        for call in self._graph.custom_calls:
            first = min(call.results, default=0)
            # A result that is also an argument, or that is computed before one, has no such node.
            if first >= len(self._spec.leaves) and max(call.operands, default=-1) < first:
                found.update((value, (call, place)) for place, value in enumerate(call.results) if value not in found)
        return found

    def _custom_node(self, spec: NodeSpec, value: int, call: CustomOpCall, place: int) -> fx.Node:
        """Return the node of a custom operator's result."""
        meta = _meta(*spec.outs[0]) if spec.op != GROUP else self._values[spec.args[0][1]].meta["val"][spec.args[1][1]]
        if len(call.results) == 1:
            node = self._fx.create_node("call_function", call.op, *self._arguments(call), name=_name(value))
        else:
            if id(call) not in self._calls:
                self._calls[id(call)] = self._fx.create_node("call_function", call.op, *self._arguments(call))
                self._calls[id(call)].meta["val"] = [None] * len(call.results)
            whole = self._calls[id(call)]
            whole.meta["val"][place] = meta
            node = self._fx.create_node("call_function", operator.getitem, (whole, place), name=_name(value))
        node.meta["val"] = meta
        return node

    def _arguments(self, call: CustomOpCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return call.arguments(lambda value: self._values[value])

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
