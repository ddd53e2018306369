"""Track compilations, detect unexpected recompilations and explain them.

A *site* is a device, a user line that runs graphs, and a sync reason. These compilations are expected:

    run of the site   compilation
    first             any
    second            other ops or results (an optimizer has created its state), or of an evicted program
    any               without the ops that created the optimizer state
    any               a slice start or an index becomes a program input

A compilation under ``torch.autograd.detect_anomaly``, in a suspend() block or for IPython's display of a result is
ignored. Every other one is unexpected: it counts as UnexpectedRecompile and gets an Explanation. From the
TORCH_XLA_EXPLAIN_RECOMPILATIONS-th on, explanations are also logged (torch_xla.recompilation, WARNING): once per cause
and site, and of causes in an installed library, whose lines a user cannot change, once per library and kind; in a
watch() block, up to three causes of each site.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.diagnostics import metrics, step_timings
from torch_xla._engine.diagnostics.recompilation_explanation import (
    Explanation,
    RecompilationContext,
    add_library_note,
    explain_difference,
)
from torch_xla._engine.graph import graph_diff
from torch_xla._engine.graph.graph_summary import GraphSummary

log = logging.getLogger("torch_xla.recompilation")

_CALM = 100  # steps without unexpected compilation after which source lines of ops are no longer captured
_MAX_KNOWN = 64  # graphs per device for comparison with a new graph; graphs of the same site take precedence
_WATCHED_MESSAGES_PER_SITE = 3  # in a watch() block; otherwise 1
#: Kinds that follow from another change that was explained in the same step.
_CONSEQUENCES = frozenset({"derived", "layout", "results", "wiring"})
#: Kinds that are expected at the second run of a site.
_AT_WARM_UP = frozenset({"ops", "layout", "results", "wiring", "branch", "nothing"})

Site = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Recompilation:
    """An unexpected compilation; ``reported``: its explanation was logged."""

    site: Site
    explanation: Explanation
    reported: bool


class RecompilationTracker:
    """The compilations of this process.

    A site is new -> run once -> warm. A cause is unreported -> reported, permanently.
    """

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._runs: Counter[Site] = Counter()
        self._compiled: set[Site] = set()
        self._known: dict[int, deque[tuple[Site, GraphSummary]]] = {}
        self._interpreted: deque[tuple[Site, GraphSummary]] = deque(maxlen=_MAX_KNOWN)
        self._reported: set[tuple[object, ...]] = set()
        self._reported_at: Counter[Site] = Counter()
        self._reported_libraries: set[tuple[str, str]] = set()  # (installed library, kind), one message each
        self._is_watched = False  # in a watch() block
        #: The last explanation and its step.
        self._last: tuple[step_timings.StepRecord, Explanation] | None = None
        #: (function, what has changed) -> calls of torch_xla.compile(replay=True) that were recorded again for it.
        self.replay_misses: Counter[tuple[str, str]] = Counter()
        self.unexpected = 0
        self.found: deque[Recompilation] = deque(maxlen=1000)
        self.threshold: int | None = None  # overrides TORCH_XLA_EXPLAIN_RECOMPILATIONS
        self.capture: Callable[[bool], None] = lambda on: None  # enables capturing the source line of each op
        self._ignored = threading.local()  # .depth: the number of nested suspend() blocks of this thread
        self._calm = _CALM  # steps since the last unexpected compilation
        self.emit: Callable[[Explanation], None] = _log

    def ran(self, site: Site) -> None:
        """Count an execution at the site."""
        self._runs[site] += 1

    def compiled(self, site: Site, new: GraphSummary, context: RecompilationContext) -> Explanation | None:
        """Record a compilation at the site; return its explanation if it was unexpected."""
        if self._is_ignored(site):
            return None
        with self._lock:
            known = self._known.setdefault(site[0], deque(maxlen=_MAX_KNOWN))
            same_site = [graph for other, graph in known if other == site]
            old = (
                graph_diff.nearest_summary(new, same_site or (graph for _, graph in known))
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
        found = explain_difference(changed, context)
        if (self._runs[site] <= 1 and found.kind in _AT_WARM_UP) or _is_optimizer_state_init(found):
            return None
        metrics.count("UnexpectedRecompile")
        self._set_line_capture(True)
        found = self._root_cause(found)
        reported = self._should_report(site, found)
        self.found.append(Recompilation(site, found, reported))
        if reported:
            self._emit_message(found)
        return found

    def interpreted(self, site: Site, new: GraphSummary) -> None:
        """Record an interpreted graph of a site that is not unstable yet, for comparison with the next graph."""
        if not self._is_ignored(site):
            with self._lock:
                self._interpreted.append((site, new))

    def report_unstable_site(self, site: Site, new: GraphSummary, context: RecompilationContext) -> None:
        """Log that the graphs of an unstable site, now ``new``, are interpreted from now on, and what changes."""
        if self._is_ignored(site):
            return
        with self._lock:
            known = [*self._known.get(site[0], ()), *self._interpreted]
        old = graph_diff.nearest_summary(new, [graph for other, graph in known if other == site])
        if old is None or not settings.TORCH_XLA_EXPLAIN_RECOMPILATIONS:
            return
        found = explain_difference(graph_diff.diff_summaries(old, new), context, unstable=True)
        with self._lock:
            if not self._is_first_of_library(found):
                return
            self._reported.add(found.subject)
        self._emit_message(found)

    def note_replay_miss(self, function: str, reason: str) -> None:
        """Count a call of a replayed function that was recorded again, because ``reason`` has changed."""
        with self._lock:
            self.replay_misses[function, reason] += 1
        log.info("%s was recorded again: %s", function, reason)

    def _is_ignored(self, site: Site) -> bool:
        if user_frames.installed_library(site[2]) == "IPython":  # displays the results of cells, each another graph
            return True
        # detect_anomaly reads a flag for each gradient, which compiles a graph for each at the line of backward().
        anomalies = torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        return anomalies or getattr(self._ignored, "depth", 0) > 0

    def step_ended(self) -> None:
        """Count a step without unexpected compilation; after _CALM of them, stop capturing source lines."""
        if self._calm < _CALM:
            self._calm += 1
            if self._calm == _CALM:
                self.capture(False)

    def stop_line_capture(self) -> None:
        """Stop capturing source lines now; for the isolation of tests."""
        self._set_line_capture(False)

    def _set_line_capture(self, on: bool) -> None:
        # Capturing adds recording time to every op, which is profitable only while compilations cost 1000 times that.
        if on != (self._calm < _CALM):
            self.capture(on)
        self._calm = 0 if on else _CALM

    def _root_cause(self, found: Explanation) -> Explanation:
        """Return the earlier explanation of the same step if ``found`` is a consequence of it, else ``found``."""
        step = step_timings.current_step()
        with self._lock:
            if self._last is not None and self._last[0] is step and _is_consequence(found, self._last[1]):
                return self._last[1]
            self._last = step, found
            return found

    def causes(self) -> list[tuple[Explanation, int]]:
        """Return (explanation, number of compilations) of every cause so far, in order of first appearance."""
        found = [r.explanation for r in list(self.found)]
        times = Counter(e.subject for e in found)
        first: dict[tuple[object, ...], Explanation] = {}
        for explanation in found:
            first.setdefault(explanation.subject, explanation)
        return [(explanation, times[subject]) for subject, explanation in first.items()]

    def _should_report(self, site: Site, found: Explanation) -> bool:
        threshold = settings.TORCH_XLA_EXPLAIN_RECOMPILATIONS if self.threshold is None else self.threshold
        with self._lock:
            self.unexpected += 1
            if not threshold or self.unexpected < threshold:
                return False
            most_at_site = _WATCHED_MESSAGES_PER_SITE if self._is_watched else 1
            if found.subject in self._reported or self._reported_at[site] >= most_at_site:
                return False
            if not self._is_first_of_library(found):
                return False
            self._reported.add(found.subject)
            self._reported_at[site] += 1
            return True

    def _is_first_of_library(self, found: Explanation) -> bool:
        """Whether no message of the kind was logged yet for the library that causes it; note one. Holds the lock."""
        library = user_frames.installed_library(found.line)
        if library is None or self._is_watched:
            return True
        is_first = (library, found.kind) not in self._reported_libraries
        self._reported_libraries.add((library, found.kind))
        return is_first

    def _emit_message(self, found: Explanation) -> None:
        library = user_frames.installed_library(found.line)
        self.emit(found if library is None or self._is_watched else add_library_note(found, library))

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """In the block, ignore this thread's compilations: they belong to a tool, or to code that runs once."""
        self._ignored.depth = getattr(self._ignored, "depth", 0) + 1
        try:
            yield
        finally:
            self._ignored.depth -= 1

    @contextmanager
    def report_all(self, emit: Callable[[Explanation], None] | None) -> Iterator[None]:
        """In the block, report every cause from the first unexpected compilation on, through ``emit`` if given."""
        before = self.threshold, self.emit, self._reported, self._reported_at, self._is_watched
        self.threshold, self._reported, self._reported_at, self._is_watched = 1, set(), Counter(), True
        self.emit = emit or self.emit
        self._set_line_capture(True)
        try:
            yield
        finally:
            self.threshold, self.emit, self._reported, self._reported_at, self._is_watched = before
            self._set_line_capture(False)


def _log(explanation: Explanation) -> None:
    with messages.clear_progress_bars():
        log.warning("%s", messages.render(explanation.text))


def _is_optimizer_state_init(found: Explanation) -> bool:
    # An optimizer creates its state in its first step, which may follow several steps of gradient accumulation.
    return found.kind == "ops" and not found.details["added"] and set(found.details["removed"]) <= {"aten::zeros_like"}


def _is_consequence(found: Explanation, earlier: Explanation) -> bool:
    # The gradient of an op has the same constants as the op.
    same = ("op", "argument")
    again = found.kind == earlier.kind == "argument" and all(found.details[n] == earlier.details[n] for n in same)
    return again or found.kind in _CONSEQUENCES


tracker = RecompilationTracker()
