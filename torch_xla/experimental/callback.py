"""Run a callback or set an event when the value of a tensor has been computed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.execution import executor
from torch_xla._engine.execution.background_threads import Runner

__all__ = ["on_ready_callback", "on_ready_event"]

#: Per device: a thread that waits for values and runs callbacks, in the order of the device's programs.
_runners: dict[int, Runner] = {}
_lock = fork_safe_lock()


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
    """Call ``callback(tensor)`` when the tensor's current value has been computed; does not wait.

    Pending operations that the value depends on run first, as for reading the value: in a training loop, call this
    after the step barrier. The callback runs on a separate thread, in order with other callbacks of the device. It also
    runs if computing the value failed; reading the value then raises the error. An error of the callback goes to
    ``threading.excepthook``. All callbacks run before the process exits.

    Args:
      tensor: an xla tensor.
      callback: the function.

    Raises:
      ValueError: the tensor is not on an xla device, or has no value that can be computed.
    """
    if tensor.device.type != "xla":
        raise ValueError(f"on_ready_callback: expected an xla tensor, got one on {tensor.device}")
    device = tensor.device.index
    with torch.no_grad():
        nodes = recorder.bindings().nodes_of([tensor.detach()])
    executor.materialize(nodes, device)
    buffers = [node.buffer for node in nodes]
    _runner(device).run(lambda: _run_callback(buffers, device, tensor, callback))


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """Return an event that is set when the tensor's current value has been computed; see on_ready_callback.

    Args:
      tensor: an xla tensor.
    """
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event


def _runner(device: int) -> Runner:
    with _lock:
        return _runners.setdefault(device, Runner("on_ready_callback"))


def _run_callback(
    buffers: list[jax.Array], device: int, tensor: torch.Tensor, callback: Callable[[torch.Tensor], object]
) -> None:
    try:
        executor.wait_values(buffers, device)
    except RuntimeError:
        pass  # reading the value raises the error
    finally:
        buffers.clear()
    try:
        callback(tensor)
    except BaseException as error:
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )
