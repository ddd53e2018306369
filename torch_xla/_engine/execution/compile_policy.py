"""Decides which graphs are interpreted instead of compiled: compiling is profitable only if the program runs again.

If shapes grow (text generation, data-dependent lengths), a user line records a new graph every time: an unstable call
site. From the third such graph of a line on, new ones are interpreted (cpu_interpreter.py) and compiled only if they
recur often. The first step of a training loop and a single evaluation never recur: a graph that takes long to compile
is compiled at its second launch. The decisions depend on what was recorded, never on time: two runs of a script
compute the same bits.

    graph on a CPU device, with TORCH_XLA_COMPILE_POLICY=             auto          interpret_first    compile
    known program                                                     launched      launched           launched
    new, of at most 64 operations, of at most 24 kinds                compiled      interpreted        compiled
    new, of more; or six, of whatever sites, ran only once            interpreted   interpreted        compiled
    was interpreted once                                              compiled      compiled           compiled

    new, and two graphs of its site ran only once (unstable)          interpreted   interpreted        as above
    was interpreted once, and two others of its site ran only once    interpreted   interpreted        as above
    was interpreted at an unstable site, fewer than 16 times          interpreted   interpreted        as above

    interpret_large: as auto, interpret_once: as interpret_first, but unstable sites are treated as any other;
    interpret_unstable: as compile, but graphs of unstable sites are interpreted.

    graphs with collectives between replicas; SPMD; graphs in a torch_xla.compile region; if a listener observes every
    program (aot); programs that overwrite more than 1 GB of donated inputs, which the interpreter would retain until
    its end; devices other than CPUs                                  compiled, always
    graphs that the interpreter does not support                      compiled, counted (InterpreterUnsupportedGraphs)

Two operations are of the same kind if they differ only in the values of their operands: a program of many equal
operations compiles fast. A *site* is a user line at which graphs run, with the sync reason and the device, as in
diagnostics/recompilation_tracker.py.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.compilation.placement import Placement
from torch_xla._engine.device import abstract_device, devices
from torch_xla._engine.diagnostics import metrics, observer
from torch_xla._engine.execution import cpu_interpreter, eager_mode
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.lowering.apply_rule import LoweringError
from torch_xla._engine.parallel import replica_program

#: The values of TORCH_XLA_COMPILE_POLICY that interpret unstable sites, new large graphs, every new graph.
_INTERPRETS_UNSTABLE = frozenset({"auto", "interpret_first", "interpret_unstable"})
_INTERPRETS_LARGE = frozenset({"auto", "interpret_large"})
_INTERPRETS_FIRST = frozenset({"interpret_first", "interpret_once"})

_UNREPEATED = 2  # number of graphs of one site that have run once, from which the site is unstable
_ANYWHERE = 6  # number of graphs of all sites that have run once, from which a new graph is unlikely to recur
_WORTH = 16  # runs of a graph at an unstable site before it is compiled: CPU programs are little faster than kernels
_LARGE = 64  # operations, and
_VARIED = 24  # kinds of operations that take 0.2 s to compile and 2 ms to interpret
_MOST_KEPT = 2**30  # bytes
_REMEMBERED = 4096  # graphs that ran once

_log = logging.getLogger("torch_xla.execute")


@dataclass(slots=True)
class _GraphHistory:
    """A graph without a program, or whose program has run once: its site, its runs, whether the site was unstable."""

    site: observer.Site
    is_unstable: bool
    runs: int = 1


class _RunHistory:
    """The history of graphs until their programs repeat, and the number of graphs per site that have run only once.

    A graph is added after its first run, counts as a single run until it runs again, and is removed when its program
    repeats. The oldest graphs are evicted.
    """

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._seen: OrderedDict[Hashable, _GraphHistory] = OrderedDict()
        self._once: Counter[observer.Site] = Counter()

    def get(self, graph: Hashable) -> _GraphHistory | None:
        return self._seen.get(graph)

    def single_runs_at(self, site: observer.Site) -> int:
        return self._once[site]

    def single_runs(self) -> int:
        return self._once.total()

    def record_run(self, graph: Hashable, site: observer.Site, is_unstable: bool = False) -> None:
        with self._lock:
            found = self._seen.get(graph)
            if found is None:
                self._seen[graph] = _GraphHistory(site, is_unstable)
                self._once[site] += 1
                if len(self._seen) > _REMEMBERED:
                    self._remove(next(iter(self._seen)))
                return
            if found.runs == 1:
                self._repeated(found.site)
            found.runs += 1
            found.is_unstable |= is_unstable
            self._seen.move_to_end(graph)

    def remove(self, graph: Hashable) -> None:
        with self._lock:
            if graph in self._seen:
                self._remove(graph)

    def _remove(self, graph: Hashable) -> None:
        found = self._seen.pop(graph)
        if found.runs == 1:
            self._repeated(found.site)

    def _repeated(self, site: observer.Site) -> None:
        self._once[site] -= 1
        if not self._once[site]:
            del self._once[site]

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()
            self._once.clear()


_graphs = _RunHistory()
_reported: set[observer.Site] = set()  # unstable sites that were reported to the user


def _graph_id(run: GraphRun) -> Hashable:
    return run.device, run.graph.key, id(run.precision)


def note_launch(run: GraphRun, program: CompiledProgram) -> None:
    """Record the launch of a program that is not known to repeat, usually its first or second launch."""
    name = _graph_id(run)
    if program.launched or _graphs.get(name) is not None:
        _graphs.remove(name)
        program.repeated = True
    else:
        _graphs.record_run(name, observer.current_site(run))
    program.launched = True


def unstable_lines() -> list[str]:
    """Return the user lines that are unstable call sites."""
    return sorted({line for _, _, line in _reported})


def reset() -> None:
    """Forget all graphs and sites. For tests."""
    _graphs.clear()
    _reported.clear()


def maybe_interpret(run: GraphRun, placement: Placement) -> Sequence[jax.Array] | None:
    """Interpret a graph without a program, if compiling it is not profitable; None if it must be compiled."""
    policy = settings.TORCH_XLA_COMPILE_POLICY
    if policy == "compile":
        return None
    interprets_unstable = policy in _INTERPRETS_UNSTABLE
    name, site = _graph_id(run), observer.current_site(run)
    seen = _graphs.get(name)
    if seen is None:
        is_unstable = interprets_unstable and _graphs.single_runs_at(site) >= _UNREPEATED
        waits = policy in _INTERPRETS_LARGE and (_is_large(run.graph) or _graphs.single_runs() >= _ANYWHERE)
        wanted = is_unstable or waits or policy in _INTERPRETS_FIRST
    else:
        others = _graphs.single_runs_at(site) - (seen.runs == 1 and seen.site == site)
        is_unstable = wanted = (
            interprets_unstable and seen.runs < _WORTH and (seen.is_unstable or others >= _UNREPEATED)
        )
    results = (
        _run_interpreter(run, site if is_unstable else None) if wanted and _can_interpret(run, placement) else None
    )
    if results is not None:
        _graphs.record_run(name, site, is_unstable)
    return results


def _is_large(graph: Any) -> bool:
    return bool(graph.node_count > _LARGE or graph.distinct_ops > _VARIED)


def _can_interpret(run: GraphRun, placement: Placement) -> bool:
    return (
        placement.is_alone
        and devices.device(run.device).platform == "cpu"
        and not abstract_device.is_enabled()
        and not eager_mode.in_region()
        and not observer.listeners
        and _donated_bytes(run) <= _MOST_KEPT
    )


def _donated_bytes(run: GraphRun) -> int:
    leaves = run.graph.leaf_shapes
    found = [leaves[position] for position in run.graph.donated]
    return sum(math.prod(shape) * dtypes.FROM_CODE[code].itemsize for shape, code in found)


def _run_interpreter(run: GraphRun, unstable_site: observer.Site | None) -> Sequence[jax.Array] | None:
    record = observer.begin_interpretation(run, unstable_site is not None)
    arrays = [replica_program.to_local_array(leaf) for leaf in run.leaves()]
    try:
        results = cpu_interpreter.interpret_graph(run, arrays)
    except (recorder.bindings().NotInterpretable, LoweringError) as error:
        metrics.count("InterpreterUnsupportedGraphs")
        _log.info("compiling a graph of %d ops that the interpreter does not support: %s", run.graph.node_count, error)
        return None
    if unstable_site is not None and unstable_site not in _reported:
        _reported.add(unstable_site)
        observer.on_unstable_site(run.graph, run.spec, unstable_site, f"xla:{run.device}")
    run.graph.finish(results)
    metrics.count("InterpretedGraphs")
    record.finished()
    return results
