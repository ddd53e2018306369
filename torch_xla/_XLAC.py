"""The names of upstream's C++ module that scripts call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.execution import pending
from torch_xla.torch_xla import real_devices


def _xla_metrics_report() -> str:
    """The metrics report; see torch_xla.debug.metrics."""
    return metrics.report()


def _xla_get_devices() -> list[str]:
    """The hardware behind each xla device."""
    return real_devices()


def _xla_get_default_device() -> str:
    """The current xla device."""
    return f"xla:{recorder.module().current_device()}"


def _xla_set_default_device(device: str) -> str:
    """Makes ``device`` the current one of this thread and returns it."""
    index = recorder.ordinal(device)
    recorder.module().set_current_device(index)
    return f"xla:{index}"


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, as text; nothing runs."""
    return pending.render("_get_xla_tensors_text", tensors, "text")


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, for Graphviz."""
    return pending.render("_get_xla_tensors_dot", tensors, "dot")


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The graph that computes the tensors, as HLO."""
    return pending.render("_get_xla_tensors_hlo", tensors, "hlo")


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number from 1 that is the tensor's own; ``tensor.data`` and ``detach()``, which are the same memory, share it.

    RuntimeError for a tensor of another device.
    """
    return int(recorder.module().tensor_id(tensor))
