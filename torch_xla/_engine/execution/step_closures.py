"""Step closures (xm.add_step_closure): functions that the next step barrier calls, when the step's values exist.

    queued (by a thread, for its current device) ──barrier──► called in order on that thread
                                                          └──► or by a background_threads.Runner, in order;
                                                               a barrier that waits, waits for these, too

Each thread has its own queues; a barrier of another thread does not call them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torch_xla._engine.compat import dynamo
from torch_xla._engine.execution import background_threads


@dataclass(frozen=True, slots=True)
class StepClosure:
    """A function to call with arguments when a step has ended."""

    function: Callable[..., Any]
    args: Sequence[Any]
    run_async: bool

    def call(self) -> Any:
        """Call the function."""
        return self.function(*self.args)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.queued: dict[int, list[StepClosure]] = {}


_here = _Thread()
_background = background_threads.Runner("a closure of add_step_closure(run_async=True)", max_pending=100)


def add_step_closure(device: int, closure: Callable[..., Any], args: Sequence[Any], run_async: bool) -> None:
    """Queue ``closure(*args)`` for the next barrier of this thread on the device."""
    if run_async:
        # The program continues while the closure waits, and may overwrite its arguments.
        leaves, structure = dynamo.tree_flatten(list(args))
        args = dynamo.tree_unflatten([_copy(leaf) for leaf in leaves], structure)
    queue_step_closure(device, StepClosure(closure, args, run_async))


def queue_step_closure(device: int, closure: StepClosure) -> None:
    """Queue a closure whose arguments are not copied."""
    _here.queued.setdefault(device, []).append(closure)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def queued_closures(device: int) -> list[StepClosure]:
    """Return what this thread has queued for the next barrier on the device."""
    return list(_here.queued.get(device, ()))


def run_step_closures(device: int) -> None:
    """Call all closures queued for the device; then raise the first error."""
    queued = _here.queued.pop(device, None)
    if queued is None:
        return
    errors = []
    for closure in queued:
        try:
            _background.run(closure.call) if closure.run_async else closure.call()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def wait_until_quiet(timeout: float) -> bool:
    """Wait until no closure runs asynchronously, for ``timeout`` seconds at most. Return whether none does.

    Errors are left for the next barrier. Inside a closure that runs asynchronously, returns False without waiting.
    """
    return not _background.is_current_thread() and _background.wait_until_done(timeout)


def wait_for_async_closures() -> None:
    """Wait until the closures of all threads that run asynchronously are done. Raises the error of one."""
    if not _background.is_current_thread():  # a closure that ends a step would wait for itself
        _background.wait()
