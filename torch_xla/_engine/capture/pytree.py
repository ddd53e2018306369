"""Nested values with xla tensors, taken apart as torch's control flow does it: None is a leaf that is no tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.capture.constant_keys import constant_key
from torch_xla._engine.compat import dynamo


@dataclass(frozen=True, eq=False)
class TensorTree:
    """Of a nested value, everything but its tensors.

    Two structures are equal where the types of their nodes are the same, not only called the same as in torch's specs.
    """

    spec: Any
    present: tuple[bool, ...]  # of each leaf: is it a tensor, or None

    def build(self, tensors: Sequence[Any]) -> Any:
        """The nested value with ``tensors``, as many as there are."""
        rest = iter(tensors)
        return dynamo.tree_unflatten([next(rest) if there else None for there in self.present], self.spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorTree) or self.present != other.present or self.spec != other.spec:
            return False
        return all(a is b for a, b in zip(_node_types(self.spec), _node_types(other.spec), strict=True))

    def key(self, what: str) -> Hashable:
        """Return a key that equal structures have, and others not.

        Raises:
          TypeError: a node of the user's has a context without a value to compare.
        """
        try:
            return _spec_key(self.spec), self.present
        except TypeError as error:
            raise TypeError(f"{what}: the structure has, in the context of a pytree node, {error}") from error


def _node_types(spec: Any) -> Iterator[Any]:
    yield spec.type
    for child in dynamo.children(spec):
        yield from _node_types(child)


def _spec_key(spec: Any) -> Hashable:
    return spec.type, _context_key(spec.context), tuple(_spec_key(child) for child in dynamo.children(spec))


def _context_key(context: Any) -> Hashable:
    """The key of what torch keeps of a node beside its children, such as the keys of a dictionary."""
    if isinstance(context, dict):
        return type(context), tuple((_context_key(name), _context_key(value)) for name, value in context.items())
    if isinstance(context, (list, tuple)):
        return type(context), tuple(map(_context_key, context))
    return constant_key(context)


def flatten_tensors(what: str, value: Any) -> tuple[list[torch.Tensor], TensorTree]:
    """The tensors, in order, and the rest. TypeError where there is another leaf than xla tensors and None."""
    leaves, spec = dynamo.tree_flatten(value)
    for leaf in leaves:
        if leaf is not None and not (isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"):
            shown = f"{leaf.dtype}{list(leaf.shape)} on {leaf.device}" if isinstance(leaf, torch.Tensor) else type(leaf)
            raise TypeError(f"{what}: expected a structure of xla tensors, found {shown} in it")
    return [t for t in leaves if t is not None], TensorTree(spec, tuple(t is not None for t in leaves))


def format_structs(tensors: Sequence[Any]) -> str:
    """Shapes and dtypes for an error."""
    return "[" + ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors) + "]"
