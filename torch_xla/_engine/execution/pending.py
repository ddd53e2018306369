"""What has been recorded and not yet run, to look at. Looking changes neither the graph nor the random numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.execution import dump
from torch_xla._engine.graph import specs

Tensors = Sequence[torch.Tensor] | torch.Tensor


def _nodes(name: str, tensors: Tensors) -> tuple[list[Any], int]:
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]  # what iterates over it would be its rows
    wrong = [t for t in tensors if t.device.type != "xla"]
    if wrong:
        shown = ", ".join(f"{t.dtype}{list(t.shape)} on {t.device}" for t in wrong)
        raise ValueError(f"{name}: expected xla tensors, got {shown}")
    used = sorted({t.device.index for t in tensors})
    if len(used) > 1:
        raise ValueError(f"{name}: expected tensors of one device, got xla:{' and xla:'.join(map(str, used))}")
    return recorder.module().nodes_of(list(tensors)), used[0] if used else recorder.module().current_device()


def _all_pending(device: int) -> list[Any]:
    return list({id(node): node for node in recorder.module().live_nodes(device) if node.pending}.values())


class _Pending:
    """The graph of some tensors (None: of all that is pending on the current device), taken apart."""

    def __init__(self, name: str, tensors: Tensors | None) -> None:
        if tensors is None:
            self.device = recorder.module().current_device()
        else:
            nodes, self.device = _nodes(name, tensors)
        recorder.module().exclusively(self.device, self._take, None if tensors is None else nodes)

    def _take(self, nodes: list[Any] | None) -> None:
        graph = recorder.module().collect_only(self.device, _all_pending(self.device) if nodes is None else nodes)
        self.spec = specs.describe(graph)
        self.arguments = (graph.floats(), graph.ints(), *graph.inputs())


def render(name: str, tensors: Tensors | None, form: str) -> str:
    """The graph that computes ``tensors`` as ``text``, ``dot``, ``hlo`` or ``stablehlo``.

    ``name`` begins error messages. Raises ValueError for tensors that are not on one xla device.
    """
    found = _Pending(name, tensors)
    return dump.render(form, found.spec, found.device, found.arguments)


def taken(name: str, tensors: Tensors) -> tuple[specs.GraphSpec, int, tuple[Any, ...]]:
    """The graph of some tensors, its device, and what its program takes: its numbers (floats, ints), then arrays."""
    found = _Pending(name, tensors)
    return found.spec, found.device, found.arguments


def key(name: str, tensors: Tensors) -> bytes:
    """128 bits that are equal where the graph of the tensors is the same program."""
    nodes, device = _nodes(name, tensors)
    found: bytes = recorder.module().exclusively(device, lambda: recorder.module().collect_only(device, nodes).key)
    return found


def bytecode(name: str, tensors: Tensors | None) -> bytes:
    """The graph as StableHLO in MLIR's bytecode."""
    found = _Pending(name, tensors)
    out = io.BytesIO()
    module = dump.lower(found.spec, found.device, found.arguments).compiler_ir("stablehlo")
    assert module is not None  # jax: None for a dialect that the backend does not have
    module.operation.write_bytecode(out)
    return out.getvalue()
