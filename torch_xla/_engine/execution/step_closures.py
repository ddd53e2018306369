"""What the user wants to be done once the step's values are there: closures that the next barrier calls.

    queued (by a thread, for its current device) ──barrier──► called, in order, on that thread
                                                          └──► or by a background.Runner, in order

Queues belong to the thread that fills them; a barrier of another thread leaves them alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from torch_xla._engine.compat import dynamo
from torch_xla._engine.execution import background_threads

Closure = Callable[[], Any]


class _Thread(threading.local):
    def __init__(self) -> None:
        self.queued: dict[int, list[tuple[Closure, bool]]] = {}


_here = _Thread()


_beside = background_threads.Runner("a closure of add_step_closure(run_async=True)", max_pending=100)


def add_step_closure(device: int, closure: Callable[..., Any], args: Sequence[Any], beside: bool) -> None:
    """Queues ``closure(*args)`` for the next barrier of this thread on the device."""
    if beside:
        # The program goes on while it waits, and may write to its arguments.
        leaves, structure = dynamo.tree_flatten(list(args))
        args = dynamo.tree_unflatten([_copy(leaf) for leaf in leaves], structure)
    _here.queued.setdefault(device, []).append((lambda: closure(*args), beside))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def run_step_closures(device: int) -> None:
    """Calls what is queued for the device. All are called; then the first error is raised."""
    queued = _here.queued.pop(device, None)
    if queued is None:
        return
    errors = []
    for closure, beside in queued:
        try:
            _beside.run(closure) if beside else closure()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
