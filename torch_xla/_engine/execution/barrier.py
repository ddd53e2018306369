"""The step barrier (mark_step), and the automatic flush for training loops that have none.

A script written for another device does not mark the end of a step, so its graph would grow until a value is read. So
when an optimizer starts its second step and nothing was flushed since its first, the graph is flushed there, the user
is warned once, and from then on the graph is flushed after each step of that optimizer.

    optimizer:   unseen -> stepped (by a step) -> unseen (by a barrier)
                           stepped -> without barrier (by a second step), permanently
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks, messages, user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.tracebacks import hide_engine_frames
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics, observer, sync_reasons
from torch_xla._engine.execution import eager_mode, executor, step_closures

_CAUSE = "xla tensors are lazy: without a sync, the graph grows with every step"
_FIX = (
    "call torch_xla.sync() at the end of each step (or xm.optimizer_step(optimizer, barrier=True)); "
    "TORCH_XLA_AUTO_SYNC=0 turns the automatic sync off"
)

_lock = fork_safe_lock()
_stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_in_step: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_without_barrier: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_anyone_stepped = False
_warned = False


def _devices(optimizer: torch.optim.Optimizer) -> set[int]:
    return {p.device.index or 0 for group in optimizer.param_groups for p in group["params"] if p.device.type == "xla"}


def flush_graph(device: int, reason: str = sync_reasons.LIMIT) -> None:
    """Run everything pending on the device; does not count as a step barrier."""
    if not eager_mode.is_eager():
        metrics.count("GraphFlush")
    with sync_reasons.sync_reason(reason):
        executor.sync_device(device)


# Dynamo may trace the hooks of optimizers on other devices; those on xla lock and sync, which must run in each step.
def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if _is_on_xla(optimizer):
        _count_step(optimizer)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if _is_on_xla(optimizer):
        _finish_step(optimizer)


def _is_on_xla(optimizer: torch.optim.Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "xla":
                return True
    return False


@dynamo_hooks.graph_break
@hide_engine_frames
def _count_step(optimizer: torch.optim.Optimizer) -> None:
    global _warned, _anyone_stepped
    if not settings.TORCH_XLA_AUTO_SYNC or optimizer in _without_barrier:
        return
    with _lock:
        again = optimizer in _stepped and optimizer not in _in_step  # a step() that raised does not count
        _stepped.add(optimizer)
        _in_step.add(optimizer)
        _anyone_stepped = True
    if not again:
        return
    _without_barrier.add(optimizer)
    if not _warned:
        _warned = True
        name = type(optimizer).__name__
        headline = f"no torch_xla.sync() between calls of {name}.step() at {user_frames.user_line()}"
        headline += f"; torch_xla now syncs after every {name}.step()"
        messages.warn(messages.compose(headline, _CAUSE, _FIX, "missing-sync"))
    for device in _devices(optimizer):
        flush_graph(device, sync_reasons.FIRST_NO_BARRIER)


@dynamo_hooks.graph_break
@hide_engine_frames
def _finish_step(optimizer: torch.optim.Optimizer) -> None:
    _in_step.discard(optimizer)
    if optimizer in _without_barrier:
        for device in _devices(optimizer):
            flush_graph(device, sync_reasons.NO_BARRIER)
            observer.on_step_end(device)


def _clear_stepped() -> None:
    global _anyone_stepped
    with _lock:
        _stepped.clear()
        _anyone_stepped = False


@dynamo_hooks.graph_break
@hide_engine_frames
def mark_step(wait: bool = False) -> None:
    """End a step: launch everything pending on this thread's device.

    With ``wait``, block until the device and the asynchronous step closures are done.
    """
    devices.check_not_forked()
    metrics.count("MarkStep")
    observer.emit_step_log()
    if _anyone_stepped:
        _clear_stepped()
    device = recorder.bindings().current_device()
    with sync_reasons.sync_reason(sync_reasons.SYNC):
        executor.sync_device(device, wait or settings.XLA_SYNC_WAIT)
    observer.on_step_end(device)
    step_closures.run_step_closures(device)
    if wait:
        step_closures.wait_for_async_closures()


def install_optimizer_hook() -> None:
    """Hook the step() of every optimizer."""
    from torch.optim import optimizer

    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)
