"""Decides which graphs are interpreted instead of compiled. One rule: compile a graph when it recurs.

The first step of a training loop and a single evaluation never recur, and if shapes grow (text generation,
data-dependent lengths), a user line records a new graph every time: an unstable line.

    graph on a CPU device, with TORCH_XLA_COMPILE_POLICY=      auto           eager          compile
    its program is in memory                                   launched       launched       launched
    new                                                        interpreted    interpreted    compiled
    interpreted before                                         compiled       interpreted    compiled
    interpreted before, its line is unstable                   interpreted    interpreted    compiled

A line is unstable while two of its other graphs were interpreted and not compiled since. After 16 runs a graph is
compiled even there.

    graphs with collectives between replicas; SPMD; graphs in a torch_xla.compile region; if a listener observes every
    program (aot); graphs that overwrite more than 1 GB of donated inputs, which the interpreter would retain until its
    end; devices other than CPUs                               compiled, always
    graphs that the interpreter does not support               compiled, counted (InterpreterUnsupportedGraphs)

A compiled graph may be loaded from the persistent cache, but neither its contents nor time decide anything: two runs of
a script compute the same bits. Lines are distinguished by sync reason and device, too: a *site*, as in
diagnostics/recompilation_tracker.py.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.placement import Placement
from torch_xla._engine.device import abstract_device, capabilities, devices
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.execution import cpu_interpreter, eager_mode
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.parallel import replica_program

_UNSTABLE = 2  # other graphs of a site that were interpreted, from which the site is unstable
_WORTH = 16  # runs of a graph at an unstable site before it is compiled: CPU programs are little faster than kernels
_MOST_KEPT = 2**30  # bytes
_REMEMBERED = 4096  # graphs

_log = logging.getLogger("torch_xla.execute")


class _InterpretedGraphs:
    """Graphs that were interpreted and not compiled since, with their sites and runs. The oldest are evicted."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._seen: OrderedDict[Hashable, tuple[observer.Site, int]] = OrderedDict()
        self._at: Counter[observer.Site] = Counter()

    def find(self, graph: Hashable, site: observer.Site) -> tuple[int, int]:
        """Return the runs of a graph, and the number of other graphs at the site."""
        own, runs = self._seen.get(graph, (None, 0))
        return runs, self._at[site] - (own == site)

    def record_run(self, graph: Hashable, site: observer.Site) -> None:
        with self._lock:
            known, runs = self._seen.pop(graph, (site, 0))
            self._seen[graph] = known, runs + 1
            self._at[known] += runs == 0
            if len(self._seen) > _REMEMBERED:
                self._remove(next(iter(self._seen)))

    def remove(self, graph: Hashable) -> None:
        with self._lock:
            if graph in self._seen:
                self._remove(graph)

    def _remove(self, graph: Hashable) -> None:
        site, _ = self._seen.pop(graph)
        self._at[site] -= 1
        if not self._at[site]:
            del self._at[site]

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()
            self._at.clear()


_graphs = _InterpretedGraphs()
_reported: set[observer.Site] = set()  # unstable sites that were reported to the user


def unstable_lines() -> list[str]:
    """Return the user lines that are unstable call sites."""
    return sorted({line for _, _, line in _reported})


def reset() -> None:
    """Forget all graphs and sites. For tests."""
    _graphs.clear()
    _reported.clear()


def maybe_interpret(run: GraphRun, placement: Placement) -> Sequence[jax.Array] | None:
    """Interpret a graph without a program, as the policy says; None if it must be compiled."""
    policy = settings.TORCH_XLA_COMPILE_POLICY
    if policy == "compile":
        return None
    graph, site = (run.device, run.graph.key, id(run.precision)), observer.current_site(run)
    runs, others = _graphs.find(graph, site) if policy == "auto" else (0, 0)
    is_wanted = runs == 0 or (others >= _UNSTABLE and runs < _WORTH)
    results = _run_interpreter(run, site, others) if is_wanted and _can_interpret(run, placement) else None
    if results is None:
        _graphs.remove(graph)
    elif policy == "auto":
        _graphs.record_run(graph, site)
    return results


def _explain(run: GraphRun, site: observer.Site, others: int) -> None:
    """Report a site that has become unstable: what differs between its last two graphs."""
    if others == _UNSTABLE - 1:
        observer.on_interpreted(run.graph, run.spec, site, f"xla:{run.device}")
    elif others >= _UNSTABLE and site not in _reported:
        _reported.add(site)
        observer.on_unstable_site(run.graph, run.spec, site, f"xla:{run.device}")


def _can_interpret(run: GraphRun, placement: Placement) -> bool:
    return (
        placement.is_alone
        and capabilities.runs_in_process(devices.device(run.device))
        and not abstract_device.is_enabled()
        and not eager_mode.in_region()
        and not observer.listeners
        and _donated_bytes(run) <= _MOST_KEPT
    )


def _donated_bytes(run: GraphRun) -> int:
    leaves = run.graph.leaf_shapes
    found = [leaves[position] for position in run.graph.donated]
    return sum(math.prod(shape) * dtypes.FROM_CODE[code].itemsize for shape, code in found)


def _run_interpreter(run: GraphRun, site: observer.Site, others: int) -> Sequence[jax.Array] | None:
    record = observer.begin_interpretation(run, others >= _UNSTABLE)
    arrays = [replica_program.to_local_array(leaf) for leaf in run.leaves()]
    try:
        results = cpu_interpreter.interpret_graph(run, arrays, is_unstable=others >= _UNSTABLE)
    except (recorder.bindings().NotInterpretable, LoweringError) as error:
        metrics.count("InterpreterUnsupportedGraphs")
        _log.info("compiling a graph of %d ops that the interpreter does not support: %s", run.graph.node_count, error)
        return None
    _explain(run, site, others)
    run.graph.finish(results)
    metrics.count("InterpretedGraphs")
    record.finished()
    return results
