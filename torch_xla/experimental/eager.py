"""Eager mode: run every operation when it is called, as a cached single-operation program.

Use it for debugging, and for programs whose graphs never repeat. Views are computed when they are read. Wrap code that
should still be one graph, such as the training step, in ``torch_xla.compile``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._engine.execution import eager_mode as engine_eager_mode
from torch_xla._engine.execution import executor


def eager_mode(enable: bool) -> None:
    """Enable or disable eager mode for all threads of the process. Pending operations run first.

    Args:
      enable: True to run operations eagerly, False to record them.
    """
    if enable != engine_eager_mode.eager_requested():
        executor.for_each_device(executor.sync_device)
        engine_eager_mode.set_eager(enable)


def is_eager_mode() -> bool:
    """Return whether operations run eagerly; False inside ``torch_xla.compile``."""
    return engine_eager_mode.is_eager()


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Enable or disable eager mode for a block.

    Args:
      enable: True to run operations eagerly, False to record them.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.eager import eager_mode_context, is_eager_mode
      >>> with eager_mode_context(True):
      ...     y = torch.ones(2, device="xla") + 1  # runs here
      ...     print(is_eager_mode())
      True
    """
    before = engine_eager_mode.eager_requested()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
