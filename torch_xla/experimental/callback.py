"""What happens when a value is there: a call, or an event to wait for."""

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

#: By device: what waits for values and calls. Those of one device come in the order of its programs.
_runners: dict[int, Runner] = {}
_lock = fork_safe_lock()


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
    """Has ``callback(tensor)`` called when the tensor's value, as it is now, has been computed; waits for nothing.

    What is still recorded and the value needs is run, as if it were read: in a training loop after the step barrier.
    The callback is called on a thread beside the program, in order with others of the device, also where computing the
    value failed: reading it raises then. An error of the callback goes to ``threading.excepthook``. At the end of the
    process all are called first. Raises ValueError for a tensor that is on no xla device, or has no value yet that
    could be computed.
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
    """An event that is set when the tensor's value, as it is now, has been computed; see on_ready_callback."""
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
        pass  # who reads the value is told
    finally:
        buffers.clear()
    try:
        callback(tensor)
    except BaseException as error:
        threading.excepthook(
            threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
        )
