"""Mark patterns in exported programs as ``stablehlo.composite``, which a consumer may replace by a kernel."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["StableHLOCompositeBuilder"]

_groups = itertools.count()


class StableHLOCompositeBuilder:
    """Marks the inputs and outputs of a region of a module, which torch_xla.stablehlo exports as one composite.

        def forward(self, q, k, v):
            builder = StableHLOCompositeBuilder("mylib.attention", {"scale": 0.5})
            q, k, v = builder.mark_inputs(q, k, v)
            out = ...
            return builder.mark_outputs(out)

    The operations between the marks are the composite's decomposition: the program has the same meaning with and
    without it. Other values that the region reads (weights) become further inputs. Recorded graphs have no marks: xla
    tensors are returned unchanged. Programs with dynamic sizes, and files for several platforms, have no composites
    either, because jax cannot serialize these yet.

    Args:
      name: name of the composite.
      attr: its attributes by name: numbers, strings and bools.

    Raises:
      TypeError: an attribute of another type.
    """

    def __init__(self, name: str, attr: Mapping[str, int | float | str | bool] | None = None) -> None:
        for key, value in (attr or {}).items():
            if not isinstance(value, (int, float, str)):
                raise TypeError(f"StableHLOCompositeBuilder: attribute {key}={value!r} must be a number, str or bool")
        self._name, self._attributes, self._group = name, json.dumps(dict(attr or {})), next(_groups)

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """Mark the inputs of the region; return one tensor, or a tuple of several. The region must use the results.

        Args:
          tensors: the inputs, in the order of the region's arguments.
        """
        return self._marked(tensors, False)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """Mark the outputs of the region; returns like mark_inputs.

        Args:
          tensors: the outputs, in the order of the region's results.
        """
        return self._marked(tensors, True)

    def _marked(self, tensors: tuple[torch.Tensor, ...], output: bool) -> Any:
        marked = tuple(
            t
            if t.device.type == "xla"
            else torch.ops.torch_xla.mark_pattern(t, self._name, self._group, place, output, self._attributes)
            for place, t in enumerate(tensors)
        )
        return marked[0] if len(marked) == 1 else marked
