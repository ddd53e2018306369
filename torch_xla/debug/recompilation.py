"""Explain recompilations: what changed between a compiled graph and the closest known graph.

A compilation is unexpected if its line has compiled before, except after an optimizer has created its state. From the
third unexpected compilation on (TORCH_XLA_EXPLAIN_RECOMPILATIONS), each new cause is logged once by the logger
``torch_xla.recompilation``. To report causes from the first one on::

    with recompilation.watch():
        train()

To list them afterwards: ``print(recompilation.report())``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_xla._engine.diagnostics.recompilation_explanation import Explanation
from torch_xla._engine.diagnostics.recompilation_tracker import tracker as _watcher

__all__ = ["Explanation", "clear", "count", "explanations", "report", "watch"]


@contextmanager
def watch(speak: Callable[[Explanation], None] | None = None) -> Iterator[list[Explanation]]:
    """Report each cause of recompilation in the block once, from the first unexpected compilation on.

    The context manager yields the list of explanations, which grows during the block.

    Args:
      speak: called with each explanation; default: log it as a warning of ``torch_xla.recompilation``.

    Examples:
      Batches of different sizes compile different programs:

      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.debug import recompilation
      >>> with recompilation.watch(speak=lambda explanation: None) as causes:
      ...     for size in (4, 4, 8, 8):
      ...         y = torch.ones(size).to("xla") * 3
      ...         torch_xla.sync()
      >>> [cause.kind for cause in causes]
      ['inputs']
    """
    reported: list[Explanation] = []
    emit = _watcher.emit if speak is None else speak

    def report_cause(explanation: Explanation) -> None:
        reported.append(explanation)
        emit(explanation)

    with _watcher.report_all(report_cause):
        yield reported


def count() -> int:
    """Return the number of unexpected compilations of this process; met.clear_counters() does not reset it.

    Examples:
      >>> from torch_xla.debug import recompilation
      >>> recompilation.count() >= 0
      True
    """
    return _watcher.unexpected


def explanations() -> list[Explanation]:
    """Return the distinct causes of unexpected compilations so far, logged or not, in order of first appearance."""
    return [explanation for explanation, _ in _watcher.causes()]


def report() -> str:
    """Return a paragraph per cause with its number of compilations, or a sentence that there was none.

    Examples:
      >>> from torch_xla.debug import recompilation
      >>> recompilation.clear()
      >>> print(recompilation.report())
      No unexpected compilation so far.
    """
    causes = [f"{n} × {e}" for e, n in _watcher.causes()]
    misses = [
        f"{n} × torch_xla.compile(replay=True) recorded {function} again: {reason}"
        for (function, reason), n in _watcher.replay_misses.items()
    ]
    return "\n\n".join(causes + misses) or "No unexpected compilation so far."


def clear() -> None:
    """Delete the recorded compilations. Causes that were logged are not logged again."""
    _watcher.found.clear()
    _watcher.replay_misses.clear()
