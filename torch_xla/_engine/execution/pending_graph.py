"""Inspects the pending graph: text, HLO, keys. Inspection changes neither the graph nor the random numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.execution import graph_dump
from torch_xla._engine.graph import graph_spec

Tensors = Sequence[torch.Tensor] | torch.Tensor


def _nodes(name: str, tensors: Tensors) -> tuple[list[Any], int]:
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]  # iterating over a tensor yields its rows
    wrong = [t for t in tensors if t.device.type != "xla"]
    if wrong:
        shown = ", ".join(f"{t.dtype}{list(t.shape)} on {t.device}" for t in wrong)
        raise ValueError(f"{name}: expected xla tensors, got {shown}")
    used = sorted({t.device.index for t in tensors})
    if len(used) > 1:
        raise ValueError(f"{name}: expected tensors of one device, got xla:{' and xla:'.join(map(str, used))}")
    return recorder.bindings().nodes_of(list(tensors)), used[0] if used else recorder.bindings().current_device()


def _all_pending(device: int) -> list[Any]:
    return list({id(node): node for node in recorder.bindings().live_nodes(device) if node.pending}.values())


class _PendingGraph:
    """The description of the graph that computes some tensors (None: everything pending on the current device)."""

    def __init__(self, name: str, tensors: Tensors | None) -> None:
        if tensors is None:
            self.device = recorder.bindings().current_device()
        else:
            nodes, self.device = _nodes(name, tensors)
        recorder.bindings().with_execution_lock(self.device, self._take, None if tensors is None else nodes)

    def _take(self, nodes: list[Any] | None) -> None:
        graph = recorder.bindings().collect_only(self.device, _all_pending(self.device) if nodes is None else nodes)
        self.spec = graph_spec.describe_graph(graph)
        self.arguments = (graph.floats(), graph.ints(), *graph.inputs())


def render_pending(name: str, tensors: Tensors | None, form: str) -> str:
    """Return the graph that computes ``tensors`` as ``text``, ``dot``, ``hlo`` or ``stablehlo``.

    ``name`` begins error messages. Raises ValueError for tensors that are not on one xla device.
    """
    found = _PendingGraph(name, tensors)
    return graph_dump.render_graph(form, found.spec, found.device, found.arguments)


def pending_program(name: str, tensors: Tensors) -> tuple[graph_spec.GraphSpec, int, tuple[Any, ...]]:
    """Return the graph of some tensors, its device, and its program's arguments (floats, ints, *arrays)."""
    found = _PendingGraph(name, tensors)
    return found.spec, found.device, found.arguments


def pending_key(name: str, tensors: Tensors) -> bytes:
    """Return a 128-bit key of the graph of some tensors; equal keys mean equal programs."""
    nodes, device = _nodes(name, tensors)
    found: bytes = recorder.bindings().with_execution_lock(
        device, lambda: recorder.bindings().collect_only(device, nodes).key
    )
    return found


def pending_bytecode(name: str, tensors: Tensors | None) -> bytes:
    """Return the graph as StableHLO in MLIR bytecode."""
    found = _PendingGraph(name, tensors)
    out = io.BytesIO()
    module = graph_dump.lower_for_dump(found.spec, found.device, found.arguments).compiler_ir("stablehlo")
    assert module is not None  # jax: None for a dialect that the backend does not have
    module.operation.write_bytecode(out)
    return out.getvalue()
