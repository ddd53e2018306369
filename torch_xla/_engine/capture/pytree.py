"""Flatten pytrees of xla tensors as torch's control flow operators do: None is a leaf without a tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.capture.constant_keys import constant_key
from torch_xla._engine.compat import dynamo


@dataclass(frozen=True, eq=False)
class TensorTree:
    """The structure of a pytree without its tensors.

    Two structures are equal if their nodes have identical types; torch's specs compare only the type names.
    """

    spec: Any
    present: tuple[bool, ...]  # for each leaf: True for a tensor, False for None

    def build(self, tensors: Sequence[Any]) -> Any:
        """Return the pytree with ``tensors`` as its leaves."""
        rest = iter(tensors)
        return dynamo.tree_unflatten([next(rest) if there else None for there in self.present], self.spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorTree) or self.present != other.present or self.spec != other.spec:
            return False
        return all(a is b for a, b in zip(_node_types(self.spec), _node_types(other.spec), strict=True))

    def key(self, what: str) -> Hashable:
        """Return a key that is equal for equal structures only.

        Raises:
          TypeError: The context of a user-defined node cannot be compared by value.
        """
        try:
            return _spec_key(self.spec), self.present
        except TypeError as error:
            raise TypeError(f"{what}: the context of a pytree node, {error}") from error


def _node_types(spec: Any) -> Iterator[Any]:
    yield spec.type
    for child in dynamo.children(spec):
        yield from _node_types(child)


def _spec_key(spec: Any) -> Hashable:
    return spec.type, _context_key(spec.context), tuple(_spec_key(child) for child in dynamo.children(spec))


def _context_key(context: Any) -> Hashable:
    """Return a key of a node's context in torch's pytrees, such as the keys of a dictionary."""
    if isinstance(context, dict):
        return type(context), tuple((_context_key(name), _context_key(value)) for name, value in context.items())
    if isinstance(context, (list, tuple)):
        return type(context), tuple(map(_context_key, context))
    return constant_key(context)


def flatten_tensors(what: str, value: Any) -> tuple[list[torch.Tensor], TensorTree]:
    """Return the tensors in order, and the structure. Raises TypeError if a leaf is neither an xla tensor nor None."""
    leaves, spec = dynamo.tree_flatten(value)
    for leaf in leaves:
        if leaf is not None and not (isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"):
            shown = f"{leaf.dtype}{list(leaf.shape)} on {leaf.device}" if isinstance(leaf, torch.Tensor) else type(leaf)
            raise TypeError(f"{what}: expected a pytree of xla tensors, found {shown}")
    return [t for t in leaves if t is not None], TensorTree(spec, tuple(t is not None for t in leaves))


def format_structs(tensors: Sequence[Any]) -> str:
    """Format shapes and dtypes for an error message."""
    return "[" + ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors) + "]"
