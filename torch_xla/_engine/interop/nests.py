"""Nested values with xla tensors, taken apart as torch's control flow does it: None is a leaf that is no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine.base.compat import tracing


@dataclass(frozen=True)
class Structure:
    """Of a nested value, everything but its tensors."""

    spec: Any
    present: tuple[bool, ...]  # of each leaf: is it a tensor, or None

    def build(self, tensors: Sequence[Any]) -> Any:
        """The nested value with ``tensors``, as many as there are."""
        rest = iter(tensors)
        return tracing.unflatten([next(rest) if there else None for there in self.present], self.spec)

    @property
    def key(self) -> Any:
        """What equal structures have, and others not."""
        return repr(self.spec), self.present


def take_apart(what: str, value: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors, in order, and the rest. TypeError where there is another leaf than xla tensors and None."""
    leaves, spec = tracing.flatten(value)
    for leaf in leaves:
        if leaf is not None and not (isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"):
            shown = f"{leaf.dtype}{list(leaf.shape)} on {leaf.device}" if isinstance(leaf, torch.Tensor) else type(leaf)
            raise TypeError(f"{what}: expected a structure of xla tensors, found {shown} in it")
    return [t for t in leaves if t is not None], Structure(spec, tuple(t is not None for t in leaves))


def show(tensors: Sequence[Any]) -> str:
    """Shapes and dtypes for an error."""
    return "[" + ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors) + "]"
