"""The time that a step waits for torch's DataLoader, as ``input`` in the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_xla._engine.base.compat import modules
from torch_xla._engine.diagnostics import journal


def _timed(original: Callable[[Any], Any], iterator: Any) -> Any:
    with journal.spent("input"):
        return original(iterator)


def install() -> None:
    """Counts the time in ``next`` of every DataLoader's iterator."""
    modules.wrap_data_loader_next(_timed)
