"""What belongs to steps: closures after the barrier, rates, and random numbers apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import step_closures
from torch_xla._engine.job import replicas


class MemoryInfo(TypedDict):
    """What get_memory_info gives: bytes, and KB of 1024 bytes."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


def add_step_closure(closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False) -> None:
    """Has the next step barrier of this thread call ``closure(*args)``, when the step's values are on their way.

    So a loss can be printed without cutting the step in two: ``xm.add_step_closure(print, (loss,))``.

    Args:
      closure: it may read tensors. An error of its is raised by the barrier, after all closures have been called.
      args: what it gets. With ``run_async`` tensors and arrays in it are copied as they are now, also in containers;
        other objects are shared with the closure.
      run_async: it is called on a thread beside the program, which need not wait for the values; closures of this kind
        are called in order. An error is raised by a later barrier, or reported on stderr with exit code 1 when the
        process ends. They have all been called then.
    """
    step_closures.add_step_closure(recorder.bindings().current_device(), closure, args, run_async)


class RateTracker:
    """Items per second, smoothed over the calls of ``rate``.

    Args:
      smooth_factor: the weight of the rate before against the newest one, in [0, 1); RATE_TRACKER_SMOOTHING by default.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth = settings.RATE_TRACKER_SMOOTHING if smooth_factor is None else smooth_factor
        if not 0 <= self._smooth < 1:
            raise ValueError(f"RateTracker: expected a smooth_factor of at least 0 and below 1, got {self._smooth}")
        self._start = self._last = time.perf_counter()
        self._count = self._counted = 0.0
        self._rate = 0.0

    def add(self, count: float) -> None:
        """Notes that so many items have been processed."""
        self._count += count

    def rate(self) -> float:
        """Items per second since the last call, smoothed with the rates before."""
        now = time.perf_counter()
        if now > self._last and self._count != self._counted:
            current = (self._count - self._counted) / (now - self._last)
            self._rate = current if not self._rate else self._smooth * self._rate + (1 - self._smooth) * current
            self._last, self._counted = now, self._count
        return self._rate

    def global_rate(self) -> float:
        """Items per second since the tracker was made."""
        return self._count / max(time.perf_counter() - self._start, 1e-9)


@contextmanager
def fork_rng(device: torch.device | str | None = None, enabled: bool = True) -> Iterator[None]:
    """After the block, the random numbers of a device (default: the current one) go on as if none had been drawn."""
    if not enabled:
        yield
        return
    module, ordinal = recorder.bindings(), recorder.ordinal(device)
    state = module.get_seed(ordinal)
    try:
        yield
    finally:
        module.set_seed(ordinal, state)


def set_replication(device: torch.device | str, devices: Sequence[torch.device | str] | None) -> None:
    """Makes ``device`` this thread's current one.

    Which devices are replicas of one another follows from how the job was started (torch_xla.launch, torchrun); so
    ``devices``, the replicas that upstream asks for, must be xla devices, and tell nothing else. RuntimeError for a
    device that does not exist. Where LOCAL_RANK is not set it is from now on: accelerate, which calls this, takes from
    it which process may print, and takes none where there is no such variable.
    """
    for other in devices or ():
        if torch.device(other.rpartition("/")[2].lower() if isinstance(other, str) else other).type == "xla":
            recorder.ordinal(other)
    recorder.bindings().set_current_device(recorder.ordinal(device))
    os.environ.setdefault("LOCAL_RANK", str(replicas.local_ordinal()))
