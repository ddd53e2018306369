"""Time that a step waits for torch's DataLoader: ``input`` in the step timings. DataLoaders pin no memory for xla."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.compat import torch_modules
from torch_xla._engine.diagnostics import step_timings


def _timed_next(original: Callable[[Any], Any], iterator: Any) -> Any:
    with step_timings.timed_block("input"):
        return original(iterator)


def patch_dataloader() -> None:
    """Measure the time in ``next`` of every DataLoader's iterator, and pin no memory for xla."""
    torch_modules.never_pin_memory("xla")
    torch_modules.wrap_data_loader_next(_timed_next)
