"""Eager mode: every operation runs as soon as it is called, one executable for each, kept and found again.

For debugging, and for programs whose graphs never repeat. Views are computed when they are read. Wrap what should still
be one graph, the training step say, in ``torch_xla.compile``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._engine.execution import executor, modes


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off, for all threads of the process. What is pending is run first."""
    if enable != modes.eager_wanted():
        executor.on_devices(executor.sync_device)
        modes.set_eager(enable)


def is_eager_mode() -> bool:
    """Whether operations run at once; False inside of ``torch_xla.compile``."""
    return modes.eager()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Eager mode on or off for a block."""
    before = modes.eager_wanted()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
