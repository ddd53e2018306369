"""Keep torch.compile's tracer (dynamo) out of the engine, and choose the backend openxla for graphs on xla.

Dynamo traces every Python function that runs below a compiled one, including functions that C++ calls back. The
engine's functions must not become part of a traced graph: they would be traced repeatedly, together with their locks,
clocks and tables. Importing torch_xla does not import dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from torch_xla._engine.compat import dynamo

F = TypeVar("F", bound=Callable[..., Any])


def dynamo_disable(function: F) -> F:
    """Exclude ``function`` and everything that it calls from tracing by dynamo.

    A function that is called inside a traced function needs more: see ``is_tracing`` and ``graph_break``.
    """
    dynamo.skip_frames_of(function)
    return function


def graph_break(function: F) -> F:
    """Make a call of ``function`` end the traced graph; a new graph starts after it."""
    dynamo_disable(function)
    dynamo.graph_break_at(function, "it queries or starts the xla device")
    return function


def is_tracing() -> bool:
    """Whether dynamo is tracing the caller."""
    return torch.compiler.is_dynamo_compiling()


def _devices(values: Iterable[Any]) -> Iterable[torch.device]:
    for value in values:
        for tensor in dynamo.tree_leaves(value):
            if isinstance(tensor, torch.Tensor):
                yield tensor.device


def _compile_for_xla(original: Callable[..., Any], compiler: Any, graph: Any, inputs: Any, **options: Any) -> Any:
    """Compile a graph on xla tensors with the backend ``openxla``; leave other graphs to inductor."""
    made = (node.meta.get("example_value", node.meta.get("val")) for node in graph.graph.nodes)
    if any(device.type == "xla" for device in (*_devices(inputs), *_devices(made))):
        return dynamo.backend("openxla")(graph, inputs)
    return original(compiler, graph, inputs, **options)


def install_dynamo_hooks() -> None:
    """Wrap the default backend of torch.compile, for which torch has no hook."""
    dynamo.wrap_default_backend(_compile_for_xla)
