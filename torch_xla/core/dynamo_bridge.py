"""Compile dynamo graphs for torch's backends ``openxla`` and ``openxla_eval`` of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture.openxla_backend import CompiledGraph

__all__ = ["extract_compiled_graph"]


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """Return a graph on xla tensors as a function that is traced once and then recorded as one operation.

    The function takes arguments like ``xla_args``, writes to the arguments that the graph writes to, and returns the
    graph's results in their order. Nothing is compiled or run before ``torch_xla.sync()``, or before a value is read.
    The function is differentiable if an argument requires a gradient.

    Args:
      xla_model: the graph.
      xla_args: example arguments: tensors of the graph's shapes and dtypes, and numbers.
    """
    del xla_args  # the first call passes them
    return CompiledGraph(xla_model)
