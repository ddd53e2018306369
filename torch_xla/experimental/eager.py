"""Eager mode: every operation runs as soon as it is called, one executable for each, kept and found again.

For debugging, and for programs whose graphs never repeat. Views are computed when they are read. Wrap what should still
be one graph, the training step say, in ``torch_xla.compile``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._engine.execution import eager_mode as engine_eager_mode
from torch_xla._engine.execution import executor


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off, for all threads of the process. What is pending is run first."""
    if enable != engine_eager_mode.eager_requested():
        executor.for_each_device(executor.sync_device)
        engine_eager_mode.set_eager(enable)


def is_eager_mode() -> bool:
    """Whether operations run at once; False inside of ``torch_xla.compile``."""
    return engine_eager_mode.is_eager()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Eager mode on or off for a block."""
    before = engine_eager_mode.eager_requested()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
