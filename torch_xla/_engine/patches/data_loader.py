"""The time that a step waits for torch's DataLoader, as ``input`` in the journal.

Wraps ``torch.utils.data.dataloader._BaseDataLoaderIter.__next__`` (private to torch; checked on 2.13), which has no
hook. Its subclasses do not override ``__next__``, only what it calls.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import dataloader

from torch_xla._engine.diagnostics import journal


def install() -> None:
    """Counts the time in ``next`` of every DataLoader's iterator."""
    inner = dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(inner)
    def timed(self: Any) -> Any:
        with journal.spent("input"):
            return inner(self)

    dataloader._BaseDataLoaderIter.__next__ = timed  # type: ignore[method-assign]
