"""Why did it recompile: knows the graphs that were compiled, and explains those that nobody expected.

A *site* is a line of the user's at which graphs run, and why. Expected are a site's first compilation, and at its
second run one with other ops or results (an optimizer that has made its state), and at any run one that no longer
makes that state, and one in which the start of a slice or an index becomes an input of the program. Every other one is
unexpected: it counts as UnexpectedRecompile and gets an Explanation. From the XLA_EXPLAIN_RECOMPILATIONS-th on, an
explanation is also logged (torch_xla.recompilation, WARNING): once for each cause, and at most three for each site.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import metrics, step_timings
from torch_xla._engine.diagnostics.recompilation_explanation import (
    Explanation,
    RecompilationContext,
    explain_difference,
)
from torch_xla._engine.graph import graph_diff
from torch_xla._engine.graph.graph_summary import GraphSummary

log = logging.getLogger("torch_xla.recompilation")

_CALM = 100  # steps without an unexpected compilation after which the lines of ops are no longer captured
_KNOWN = 64  # graphs of a device that a new one may be compared with; those of its own site come first
_PER_SITE = 3  # messages
_CONSEQUENCES = frozenset({"derived", "layout", "results", "wiring"})  # of what was explained in the same step
_AT_WARM_UP = frozenset({"ops", "layout", "results", "wiring", "branch", "nothing"})

_STORM = (
    "From now on a new graph of this line is not compiled, but computed by torch's kernels on the CPU; one that comes "
    "again and again is compiled. TORCH_XLA_STORM=compile compiles each."
)

Site = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Recompilation:
    """One unexpected compilation; ``spoken``: its explanation was logged."""

    site: Site
    explanation: Explanation
    spoken: bool


class RecompilationTracker:
    """What is known of one process. A site is unseen -> seen once -> settled; a cause is silent -> spoken, for good."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._runs: Counter[Site] = Counter()
        self._compiled: set[Site] = set()
        self._known: dict[int, deque[tuple[Site, GraphSummary]]] = {}
        self._spoken: set[tuple[object, ...]] = set()
        self._spoken_at: Counter[Site] = Counter()
        self._last: tuple[step_timings.StepRecord, Explanation] | None = (
            None  # the last explanation and the step it is of
        )
        self.unexpected = 0
        self.found: deque[Recompilation] = deque(maxlen=1000)
        self.threshold: int | None = None  # overrides the setting
        self.capture: Callable[[bool], None] = lambda on: None  # notes the line of each op that is recorded, or stops
        self._ignored = threading.local()  # .depth: how many blocks of ignoring() this thread is in
        self._calm = _CALM  # steps since the last unexpected compilation
        self.speak: Callable[[Explanation], None] = lambda explanation: log.warning("torch_xla: %s", explanation.text)

    def ran(self, site: Site) -> None:
        """A graph ran at the site."""
        self._runs[site] += 1

    def compiled(self, site: Site, new: GraphSummary, situation: RecompilationContext) -> Explanation | None:
        """A graph was compiled at the site; the explanation if that was unexpected."""
        if getattr(self._ignored, "depth", 0):
            return None
        with self._lock:
            known = self._known.setdefault(site[0], deque(maxlen=_KNOWN))
            here = [graph for place, graph in known if place == site]
            old = (
                graph_diff.nearest_summary(new, here or (graph for _, graph in known))
                if site in self._compiled
                else None
            )
            known.append((site, new))
            self._compiled.add(site)
        if old is None:
            return None
        changed = graph_diff.diff_summaries(old, new)
        if changed.argument is not None and changed.argument.is_moving_start:
            return None
        found = explain_difference(changed, situation)
        if (self._runs[site] <= 1 and found.kind in _AT_WARM_UP) or _is_optimizer_state_init(found):
            return None
        metrics.count("UnexpectedRecompile")
        self._set_line_capture(True)
        found = self._root_cause(found)
        spoken = self._should_report(site, found)
        self.found.append(Recompilation(site, found, spoken))
        if spoken:
            self.speak(found)
        return found

    def report_unstable_site(self, site: Site, new: GraphSummary, situation: RecompilationContext) -> None:
        """The site makes another graph each time, now ``new``: these are interpreted from now on. Says so, and why."""
        with self._lock:
            here = [graph for place, graph in self._known.get(site[0], ()) if place == site]
        old = graph_diff.nearest_summary(new, here)
        if old is None or not settings.XLA_EXPLAIN_RECOMPILATIONS:
            return
        found = explain_difference(graph_diff.diff_summaries(old, new), situation, "is another one each time")
        with self._lock:
            self._spoken.add(found.subject)
        self.speak(replace(found, text=f"{found.text}\n{_STORM}"))

    def step_ended(self) -> None:
        """A step has ended; after many calm ones the lines of ops are no longer captured."""
        if self._calm < _CALM:
            self._calm += 1
            if self._calm == _CALM:
                self.capture(False)

    def stop_line_capture(self) -> None:
        """As after many calm steps: the lines of ops are no longer captured. For tests, between two of them."""
        self._set_line_capture(False)

    def _set_line_capture(self, on: bool) -> None:
        # Costs recording time at every op: worth it only where compilations cost a thousand times that.
        if on != (self._calm < _CALM):
            self.capture(on)
        self._calm = 0 if on else _CALM

    def _root_cause(self, found: Explanation) -> Explanation:
        """``found``, or if that follows from what was explained earlier in the same step, the earlier one."""
        step = step_timings.current_step()
        with self._lock:
            if self._last is not None and self._last[0] is step and _is_consequence(found, self._last[1]):
                return self._last[1]
            self._last = step, found
            return found

    def causes(self) -> list[tuple[Explanation, int]]:
        """Every cause so far and how many compilations it cost, in order of first appearance."""
        found = [r.explanation for r in list(self.found)]
        times = Counter(e.subject for e in found)
        first: dict[tuple[object, ...], Explanation] = {}
        for explanation in found:
            first.setdefault(explanation.subject, explanation)
        return [(explanation, times[subject]) for subject, explanation in first.items()]

    def _should_report(self, site: Site, found: Explanation) -> bool:
        threshold = settings.XLA_EXPLAIN_RECOMPILATIONS if self.threshold is None else self.threshold
        with self._lock:
            self.unexpected += 1
            if not threshold or self.unexpected < threshold:
                return False
            if found.subject in self._spoken or self._spoken_at[site] >= _PER_SITE:
                return False
            self._spoken.add(found.subject)
            self._spoken_at[site] += 1
            return True

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """In the block, this thread's compilations are a tool's: neither explained nor compared with later ones."""
        self._ignored.depth = getattr(self._ignored, "depth", 0) + 1
        try:
            yield
        finally:
            self._ignored.depth -= 1

    @contextmanager
    def report_all(self, speak: Callable[[Explanation], None] | None) -> Iterator[None]:
        """In the block, speaks from the first unexpected one on, by ``speak`` if given; every cause is new again."""
        before = self.threshold, self.speak, self._spoken, self._spoken_at
        self.threshold, self._spoken, self._spoken_at = 1, set(), Counter()
        self.speak = speak or self.speak
        self._set_line_capture(True)
        try:
            yield
        finally:
            self.threshold, self.speak, self._spoken, self._spoken_at = before
            self._set_line_capture(False)


def _is_optimizer_state_init(found: Explanation) -> bool:
    # An optimizer makes its state in its first step, which need not be the first of the loop (gradients that add up).
    return found.kind == "ops" and not found.details["added"] and set(found.details["removed"]) <= {"aten::zeros_like"}


def _is_consequence(found: Explanation, earlier: Explanation) -> bool:
    # The gradient of an op has its constants, too.
    same = ("op", "argument")
    again = found.kind == earlier.kind == "argument" and all(found.details[n] == earlier.details[n] for n in same)
    return again or found.kind in _CONSEQUENCES


watcher = RecompilationTracker()
