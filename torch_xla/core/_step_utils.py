"""Utilities of a training step: step closures, throughput, and random number state."""

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
    """The result of get_memory_info: sizes in bytes, and in KB of 1024 bytes."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


def add_step_closure(closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False) -> None:
    """Call ``closure(*args)`` at this thread's next step barrier, after the step's computation has started.

    A closure can print a loss without splitting the step: ``xm.add_step_closure(print, (loss,))``.

    Args:
      closure: may read tensors. The barrier raises its error after all closures have run.
      args: arguments of the closure. With ``run_async``, tensors and arrays in them, including those in containers, are
        copied now; other objects are shared with the closure.
      run_async: run the closure on a separate thread, so that the program need not wait for the values. These closures
        run in order, and all of them run before the process ends. A later barrier raises an error of such a closure;
        if none follows, the error is printed to stderr at exit and the exit code is 1.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.core.xla_model as xm
      >>> loss = torch.ones(2, device="xla").sum()
      >>> xm.add_step_closure(lambda loss: print("loss", loss.item()), args=(loss,))
      >>> torch_xla.sync()
      loss 2.0
    """
    step_closures.add_step_closure(recorder.bindings().current_device(), closure, args, run_async)


class RateTracker:
    """Measure items per second, smoothed over the calls of ``rate``.

    Args:
      smooth_factor: weight of the previous rate relative to the newest one, in [0, 1); default: RATE_TRACKER_SMOOTHING.

    Raises:
      ValueError: ``smooth_factor`` is outside [0, 1).

    Examples:
      >>> import torch_xla.core.xla_model as xm
      >>> tracker = xm.RateTracker()
      >>> tracker.add(32)  # after each batch of 32 images
      >>> tracker.rate() > 0  # images per second
      True
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth = settings.RATE_TRACKER_SMOOTHING if smooth_factor is None else smooth_factor
        if not 0 <= self._smooth < 1:
            raise ValueError(f"RateTracker: expected a smooth_factor of at least 0 and below 1, got {self._smooth}")
        self._start = self._last = time.perf_counter()
        self._count = self._counted = 0.0
        self._rate = 0.0

    def add(self, count: float) -> None:
        """Add ``count`` processed items.

        Args:
          count: number of items that were processed since the last call.
        """
        self._count += count

    def rate(self) -> float:
        """Return the items per second since the last call, smoothed with the previous rates."""
        now = time.perf_counter()
        if now > self._last and self._count != self._counted:
            current = (self._count - self._counted) / (now - self._last)
            self._rate = current if not self._rate else self._smooth * self._rate + (1 - self._smooth) * current
            self._last, self._counted = now, self._count
        return self._rate

    def global_rate(self) -> float:
        """Return the items per second since the tracker was created."""
        return self._count / max(time.perf_counter() - self._start, 1e-9)


@contextmanager
def fork_rng(device: torch.device | str | None = None, enabled: bool = True) -> Iterator[None]:
    """Restore the random number state of a device (default: the current one) when the block ends.

    Args:
      device: an xla device or its name; default: the current device.
      enabled: False: do nothing.

    Examples:
      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> state = xm.get_rng_state()
      >>> with xm.fork_rng():
      ...     noise = torch.randn(4, device="xla")
      >>> xm.get_rng_state() == state
      True
    """
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
    """Make ``device`` the current device of this thread.

    The way the job was started (torch_xla.launch, torchrun) determines which devices are replicas; ``devices``, the
    replicas in upstream's interface, is only checked. Also sets LOCAL_RANK if it is unset: accelerate, which calls this
    function, decides by that variable which process prints, and no process prints without it.

    Args:
      device: an xla device.
      devices: xla devices, or None.

    Raises:
      RuntimeError: the device does not exist.
    """
    for other in devices or ():
        if torch.device(other.rpartition("/")[2].lower() if isinstance(other, str) else other).type == "xla":
            recorder.ordinal(other)
    recorder.bindings().set_current_device(recorder.ordinal(device))
    os.environ.setdefault("LOCAL_RANK", str(replicas.local_ordinal()))
