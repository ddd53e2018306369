"""Named parts of exported programs: ``stablehlo.composite``, which who reads a program may replace by a kernel."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["StableHLOCompositeBuilder"]

_groups = itertools.count()


class StableHLOCompositeBuilder:
    """Marks where a part of a module begins and ends, which torch_xla.stablehlo exports as one composite.

        def forward(self, q, k, v):
            builder = StableHLOCompositeBuilder("mylib.attention", {"scale": 0.5})
            q, k, v = builder.mark_inputs(q, k, v)
            out = ...
            return builder.mark_outputs(out)

    What is between the marks is the composite's decomposition: a program means the same with it and without. What the
    part reads beside its marked inputs (weights) comes after them. A recorded graph has no marks: xla tensors come back
    as they are. Nor has a program of dynamic sizes, or one file for several platforms: jax cannot write that yet.

    Args:
      name: of the composite.
      attr: its attributes: numbers, texts and bools by name.

    Raises TypeError for another attribute.
    """

    def __init__(self, name: str, attr: Mapping[str, int | float | str | bool] | None = None) -> None:
        for key, value in (attr or {}).items():
            if not isinstance(value, (int, float, str)):
                raise TypeError(f"StableHLOCompositeBuilder: attribute {key}={value!r} is no number, text or bool")
        self._name, self._attributes, self._group = name, json.dumps(dict(attr or {})), next(_groups)

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, where the part begins: one, or a tuple of several. It must go on with these."""
        return self._marked(tensors, False)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, where the part ends; as mark_inputs."""
        return self._marked(tensors, True)

    def _marked(self, tensors: tuple[torch.Tensor, ...], output: bool) -> Any:
        marked = tuple(
            t
            if t.device.type == "xla"
            else torch.ops.torch_xla.mark_pattern(t, self._name, self._group, place, output, self._attributes)
            for place, t in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked
