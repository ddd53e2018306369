"""The names of upstream's C++ module that scripts call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla import backends
from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.execution import pending_graph
from torch_xla.core import _lowering_context as lowering  # noqa: F401  # _XLAC.lowering.LoweringContext
from torch_xla.distributed.spmd import xla_sharded_tensor
from torch_xla.torch_xla import real_devices


def _xla_metrics_report() -> str:
    """The metrics report; see torch_xla.debug.metrics."""
    return metrics.report()


def _xla_get_devices() -> list[str]:
    """The hardware behind each xla device."""
    return real_devices()


def _xla_get_default_device() -> str:
    """The current xla device."""
    return f"xla:{recorder.bindings().current_device()}"


def _xla_set_default_device(device: str) -> str:
    """Makes ``device`` the current one of this thread and returns it."""
    index = recorder.ordinal(device)
    recorder.bindings().set_current_device(index)
    return f"xla:{index}"


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, as text; nothing runs."""
    return pending_graph.render_pending("_get_xla_tensors_text", tensors, "text")


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, for Graphviz."""
    return pending_graph.render_pending("_get_xla_tensors_dot", tensors, "dot")


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, as HLO."""
    return pending_graph.render_pending("_get_xla_tensors_hlo", tensors, "hlo")


def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    """16 bytes that are equal for graphs that are one program: the same operations on the same shapes."""
    return pending_graph.pending_key("_get_graph_hash", tensors)


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """What is known of a tensor: its id, shape and device, how it lies, and the graph that computes it if it waits."""
    text = pending_graph.render_pending("_get_xla_tensor_debug_info", [tensor], "text")
    lies = _get_xla_sharding_spec(tensor) or "on one device"
    head = f"id: {_xla_get_tensor_id(tensor)}, {tensor.dtype}{list(tensor.shape)} on {tensor.device}, {lies}"
    return f"XLATensor {{{head}}}\n{text}"


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """XLA's words for how a tensor lies over the devices, as in ``{devices=[2,1]0,1}``; '' without SPMD."""
    return xla_sharded_tensor.sharding_spec(tensor) if xla_sharded_tensor.is_sharded(tensor) else ""


def _xla_set_mat_mul_precision(precision: str) -> None:
    """torch_xla.backends.set_mat_mul_precision. ValueError for another name."""
    backends.set_mat_mul_precision(precision)  # type: ignore[arg-type]  # any text: what it is says the function


def _xla_get_mat_mul_precision() -> str:
    """torch_xla.backends.get_mat_mul_precision."""
    return backends.get_mat_mul_precision()


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number from 1 that is the tensor's own; ``tensor.data`` and ``detach()``, which are the same memory, share it.

    RuntimeError for a tensor of another device.
    """
    return int(recorder.bindings().tensor_id(tensor))
