"""Why did it recompile? What changed between a graph that was compiled and the nearest one that was known.

An unexpected compilation is one at a line that has compiled before, other than the one after an optimizer has made its
state. From the third on (XLA_EXPLAIN_RECOMPILATIONS) each new cause is told once, through the logger
``torch_xla.recompilation``. Asked for, it is told from the first on::

    with recompilation.watch():
        train()

or after the fact: ``print(recompilation.report())``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_xla._engine.diagnostics.recompilation_explanation import Explanation
from torch_xla._engine.diagnostics.recompilation_tracker import watcher as _watcher

__all__ = ["Explanation", "clear", "count", "explanations", "report", "watch"]


@contextmanager
def watch(speak: Callable[[Explanation], None] | None = None) -> Iterator[list[Explanation]]:
    """In the block every cause is told once, from the first unexpected compilation on; gives the list of them.

    ``speak`` is called with each; by default it is logged as a warning of ``torch_xla.recompilation``.
    """
    told: list[Explanation] = []
    inner = _watcher.speak if speak is None else speak

    def note(explanation: Explanation) -> None:
        told.append(explanation)
        inner(explanation)

    with _watcher.report_all(note):
        yield told


def count() -> int:
    """The number of unexpected compilations of this process; met.clear_counters() does not touch it."""
    return _watcher.unexpected


def explanations() -> list[Explanation]:
    """The causes of unexpected compilations so far, told or not, in order of first appearance, each once."""
    return [explanation for explanation, _ in _watcher.causes()]


def report() -> str:
    """A paragraph for each cause, with how many compilations it cost; a sentence if there was none."""
    causes = _watcher.causes()
    return "\n\n".join(f"{n} × {e.text}" for e, n in causes) or "No unexpected compilation so far."


def clear() -> None:
    """Forgets the compilations that were found. What has been told is not told again."""
    _watcher.found.clear()
