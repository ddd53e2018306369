"""What torch's own backends ``openxla`` and ``openxla_eval`` of torch.compile call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture.openxla_backend import CompiledGraph

__all__ = ["extract_compiled_graph"]


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """A graph on xla tensors as a function that is recorded once, and then is one operation of the step's graph.

    The function takes arguments like ``xla_args`` (tensors of these shapes and dtypes, numbers), writes to those that
    the graph writes to, and gives what the graph gives, in its order. Nothing is compiled or run before
    ``torch_xla.sync()``, or before a value is read. It has the graph's gradient where an argument needs one.
    """
    del xla_args  # the first call has them, too
    return CompiledGraph(xla_model)
