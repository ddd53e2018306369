"""Functions of upstream's C++ extension module that scripts and libraries call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla import backends
from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.execution import executor, pending_graph
from torch_xla.core import _lowering_context as lowering  # noqa: F401  # _XLAC.lowering.LoweringContext
from torch_xla.distributed.spmd import xla_sharded_tensor
from torch_xla.torch_xla import device_count, real_devices, sync


def _xla_metrics_report() -> str:
    """Return the metrics report; see torch_xla.debug.metrics."""
    return metrics.report()


def _xla_get_devices() -> list[str]:
    """Return the hardware device of each xla device."""
    return real_devices()


def _xla_get_default_device() -> str:
    """Return the current xla device."""
    return f"xla:{recorder.bindings().current_device()}"


def _xla_set_default_device(device: str) -> str:
    """Make ``device`` the current device of this thread and return it."""
    index = recorder.ordinal(device)
    recorder.bindings().set_current_device(index)
    return f"xla:{index}"


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph that computes the tensors as text, without running it."""
    return pending_graph.render_pending("_get_xla_tensors_text", tensors, "text")


def _get_xla_tensors_dot(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph that computes the tensors in Graphviz's DOT language."""
    return pending_graph.render_pending("_get_xla_tensors_dot", tensors, "dot")


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """Return the graph that computes the tensors as HLO text."""
    return pending_graph.render_pending("_get_xla_tensors_hlo", tensors, "hlo")


def _get_graph_hash(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return a 16-byte hash that is equal for graphs that share a program: the same operations on the same shapes."""
    return pending_graph.pending_key("_get_graph_hash", tensors)


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Return the id, shape, device and sharding of a tensor, and the pending graph that computes it, if any."""
    text = pending_graph.render_pending("_get_xla_tensor_debug_info", [tensor], "text")
    sharding = _get_xla_sharding_spec(tensor) or "on one device"
    head = f"id: {_xla_get_tensor_id(tensor)}, {tensor.dtype}{list(tensor.shape)} on {tensor.device}, {sharding}"
    return f"XLATensor {{{head}}}\n{text}"


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """Return the sharding of a tensor as XLA prints it, such as ``{devices=[2,1]0,1}``; '' without SPMD."""
    return xla_sharded_tensor.sharding_spec(tensor) if xla_sharded_tensor.is_sharded(tensor) else ""


def _get_xla_sharding_specs(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return _get_xla_sharding_spec of each tensor."""
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _xla_sync_multi(
    tensors: Sequence[torch.Tensor], devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True
) -> None:
    """Compute the tensors now, and what their graph depends on; other pending operations stay pending.

    Args:
      tensors: xla tensors.
      devices, sync_xla_data: accepted for compatibility; the tensors have their devices.
      wait: return only after the devices have computed them. Otherwise this is only a start of the computation.
    """
    by_device: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(recorder.ordinal(tensor.device), []).append(tensor)
    for device, group in by_device.items():
        executor.materialize(recorder.bindings().nodes_of(group), device)
        if wait:
            executor.wait_device(device)


def _xla_step_marker(
    device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True
) -> None:
    """Run the step barrier; see torch_xla.sync."""
    sync(wait, reset_scope)


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """Run the step barrier; see torch_xla.sync."""
    sync(wait)


def _xla_wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until the operations that were started on the devices (default: all) have finished."""
    for device in devices or [f"xla:{index}" for index in range(device_count())]:
        executor.wait_device(recorder.ordinal(device))


def _set_xla_all_numbers_special_scalars(value: bool) -> None:
    """Accept False, which is the behavior: numbers other than 0, 1 and -1 are inputs of a program.

    Raises:
      NotImplementedError: ``value`` is true.
    """
    if value:
        raise NotImplementedError(
            "_set_xla_all_numbers_special_scalars(True): numbers are inputs of a program, so that a changing learning "
            "rate compiles once; for a constant that XLA folds, create a tensor with torch.full inside the step"
        )


def _get_xla_all_numbers_special_scalars() -> bool:
    """Whether all numbers are constants of a program: never."""
    return False


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"torch_xla._XLAC has no {name}: it offers a few functions of upstream's extension module; see the public "
        "names of torch_xla, torch_xla.runtime and torch_xla.core.xla_model"
    )


def _xla_set_mat_mul_precision(precision: str) -> None:
    """Set the matmul precision; see torch_xla.backends.set_mat_mul_precision. Raises ValueError for an unknown name."""
    backends.set_mat_mul_precision(precision)  # type: ignore[arg-type]  # the function checks the text


def _xla_get_mat_mul_precision() -> str:
    """torch_xla.backends.get_mat_mul_precision."""
    return backends.get_mat_mul_precision()


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """Return a tensor's unique id, from 1; ``tensor.data`` and ``detach()``, which share its memory, share the id.

    Raises:
      RuntimeError: the tensor is not on an xla device.
    """
    return int(recorder.bindings().tensor_id(tensor))
