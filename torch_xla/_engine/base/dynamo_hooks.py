"""torch.compile's tracer (dynamo) and the engine: what runs as it is, and the backend that knows no xla.

Dynamo takes over every Python function that runs below a compiled one, also those that C++ calls back. The engine's own
must not become part of a traced graph: they would be traced again and again, and their locks, clocks and tables with
them. Importing torch_xla does not import dynamo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from torch_xla._engine.compat import dynamo

F = TypeVar("F", bound=Callable[..., Any])

_NO_INDUCTOR = (
    "torch.compile: backend 'inductor' (the default) makes programs for the CPU and for GPUs, and has none for "
    "{device}. XLA compiles what xla tensors compute, with or without torch.compile: leave torch.compile out "
    "(torch_xla.compile(f) makes one graph of a function), or write torch.compile(f, backend='openxla')."
)


def dynamo_disable(function: F) -> F:
    """``function``, which dynamo leaves alone when it is called: it, and all that it calls.

    One that is called in the middle of a function that is being traced has to say more: see ``is_tracing`` and
    ``breaks_graph``.
    """
    dynamo.skip_frames_of(function)
    return function


def graph_break(function: F) -> F:
    """``function``, at a call of which a traced graph ends; what follows is another one."""
    dynamo_disable(function)
    dynamo.graph_break_at(function, "it asks the xla device, or starts it")
    return function


def is_tracing() -> bool:
    """Whether dynamo is reading this, rather than Python running it."""
    return torch.compiler.is_dynamo_compiling()


def _devices(values: Iterable[Any]) -> Iterable[torch.device]:
    for value in values:
        for tensor in dynamo.tree_leaves(value):
            if isinstance(tensor, torch.Tensor):
                yield tensor.device


def _reject_xla_for_inductor(
    original: Callable[..., Any], compiler: Any, graph: Any, inputs: Any, **options: Any
) -> Any:
    made = (node.meta.get("example_value", node.meta.get("val")) for node in graph.graph.nodes)
    for device in (*_devices(inputs), *_devices(made)):
        if device.type == "xla":
            raise RuntimeError(_NO_INDUCTOR.format(device=device))
    return original(compiler, graph, inputs, **options)


def install_dynamo_hooks() -> None:
    """Wraps the default backend of torch.compile, for which torch has no hook."""
    dynamo.wrap_default_backend(_reject_xla_for_inductor)
