"""Calls of custom operators (torch.library) in a captured function.

The kernel of a custom operator records the operations that it calls. A partitioner (``partition_fn``) must see the call
as one node all the same: policies find the values to save by the operator's name and arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine import recorder

#: Namespaces of operators that the recorder records as they are, or that only run inside a trace.
_NOT_CUSTOM = frozenset(
    {"aten", "prim", "prims", "c10d", "_c10d_functional", "profiler", "higher_order", "torch_xla", "quantized"}
)


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A tensor among the arguments of a call, by its number."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class CustomOpCall:
    """A call: the overload, its arguments with a ValueRef for each tensor, and the numbers of its results."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Sequence[int]

    def arguments(self, value: Callable[[int], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with ``value(number)`` for each tensor."""
        replace = lambda ref: value(ref.number)
        return map_leaves(ValueRef, replace, self.args), map_leaves(ValueRef, replace, self.kwargs)

    @property
    def operands(self) -> list[int]:
        """The numbers of the tensors among the arguments."""
        found: list[int] = []
        self.arguments(found.append)
        return found


def is_custom_op(op: Any) -> bool:
    """Whether an operator is one of a library or a script: neither torch's nor this package's."""
    return getattr(op, "namespace", "aten") not in _NOT_CUSTOM


class CustomOpLog:
    """The calls of custom operators in one capture; lives as long as the capture.

    Numbers in its calls are indices of ``nodes``: the nodes of arguments and results at the time of the call.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self._calls: list[CustomOpCall] = []

    @property
    def key(self) -> Hashable:
        """Equal for equal calls in an equal graph, whose results include ``nodes``."""
        return tuple((str(c.op), repr(c.args), repr(c.kwargs), tuple(c.results)) for c in self._calls)

    def call(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Call the operator, log the call, and return its result."""
        seen, seen_kwargs = (map_leaves(torch.Tensor, self._refer, values) for values in (args, kwargs))
        results = op(*args, **kwargs)
        found: list[int] = []
        for result in results if isinstance(results, (tuple, list)) else [results]:
            ref = map_leaves(torch.Tensor, self._refer, result)
            found += [ref.number] if isinstance(ref, ValueRef) else []
        self._calls.append(CustomOpCall(op, seen, seen_kwargs, found))
        return results

    def _refer(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != "xla":
            return tensor
        self.nodes += recorder.bindings().nodes_of([tensor])
        return ValueRef(len(self.nodes) - 1)

    def calls(self, numbers: Sequence[int]) -> list[CustomOpCall]:
        """Return the calls with the graph's value numbers, given those of ``nodes``."""
        found = []
        for call in self._calls:
            args, kwargs = call.arguments(lambda number: ValueRef(numbers[number]))
            found.append(CustomOpCall(call.op, args, kwargs, [numbers[number] for number in call.results]))
        return found


def map_leaves(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """Return the value with ``function`` applied to each leaf of a type in its tuples, lists and dicts."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, (tuple, list)):
        items = [map_leaves(kind, function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: map_leaves(kind, function, item) for name, item in value.items()}
    return value
