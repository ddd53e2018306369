"""Which graphs are not worth compiling, or not yet: a compilation pays when its program runs again.

Where shapes grow (a text that is generated, lengths that depend on data) a line of the user's makes another graph each
time: a storm. From the third such graph of a line on, one that is new is interpreted (cpu_interpreter.py), and compiled
only if it comes again often. The first step of a training and a single evaluation never come again: what takes long to
compile is compiled when it comes the second time. What decides is what was recorded, never time: two runs of a script
compute the same bits.

    graph on a CPU device                                  TORCH_XLA_FIRST_RUN=   auto          eager         compile
    known program                                                                 launched      launched      launched
    new, of at most 64 operations, of at most 24 kinds                            compiled      interpreted   compiled
    new, of more; or six, of whatever sites, ran only once                        interpreted   interpreted   compiled
    was interpreted once                                                          compiled      compiled      compiled

    new, and two graphs of its site ran only once: a storm                        interpreted, in all three
    was interpreted once, and two others of its site ran only once: a storm       interpreted, in all three
    was interpreted in a storm, fewer than 16 times                               interpreted, in all three
    any of these, with TORCH_XLA_STORM=compile                                          as above

    exchanges values between replicas; several devices are one (SPMD); in a function of torch_xla.compile; somebody
    looks at every program (aot); a program would write over more than 1 GB of what it reads, which an interpretation
    has to keep until its end; the device is no CPU                               compiled, in all three
    cannot be interpreted                                                         compiled, which is counted

Operations are of one kind if they differ in nothing but their operands' values: a program of many equal ones compiles
fast. A *site* is a line of the user's at which graphs run, and why, on a device: as in diagnostics/recompilation_tracker.py.
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

_UNREPEATED = 2  # graphs of one site that have run once, from which on a new one is another of their kind
_ANYWHERE = 6  # graphs of all sites that have run once, from which on a new one will not come again, most often
_WORTH = 16  # runs of a graph in a storm before it is compiled: a program of the CPU gains little over its kernels
_LARGE = 64  # operations, and
_VARIED = 24  # kinds of them, that take a fifth of a second to compile, and a hundredth of that to interpret
_MOST_KEPT = 2**30  # bytes
_REMEMBERED = 4096  # graphs that ran once

_log = logging.getLogger("torch_xla.execute")


@dataclass(slots=True)
class _GraphHistory:
    """A graph without a program, or whose program has run once: its site, its runs, whether these were in a storm."""

    site: observer.Site
    in_storm: bool
    runs: int = 1


class _RunHistory:
    """What is known of graphs until their programs repeat, and how many of each site have run only once.

    A graph is added when it has run, counts as one that ran once until it runs again, and goes when its program does.
    The oldest go first.
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

    def record_run(self, graph: Hashable, site: observer.Site, in_storm: bool = False) -> None:
        with self._lock:
            found = self._seen.get(graph)
            if found is None:
                self._seen[graph] = _GraphHistory(site, in_storm)
                self._once[site] += 1
                if len(self._seen) > _REMEMBERED:
                    self._remove(next(iter(self._seen)))
                return
            if found.runs == 1:
                self._repeated(found.site)
            found.runs += 1
            found.in_storm |= in_storm
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
_told: set[observer.Site] = set()  # storms of which the user knows


def _graph_id(run: GraphRun) -> Hashable:
    return run.device, run.graph.key, id(run.precision)


def note_launch(run: GraphRun, program: CompiledProgram) -> None:
    """A program is about to run, and it is not known to repeat: for the first or the second time, most often."""
    name = _graph_id(run)
    if program.launched or _graphs.get(name) is not None:
        _graphs.remove(name)
        program.repeated = True
    else:
        _graphs.record_run(name, observer.current_site(run))
    program.launched = True


def unstable_lines() -> list[str]:
    """The lines of the user's at which there was a storm."""
    return sorted({line for _, _, line in _told})


def reset() -> None:
    """As if nothing had run. For tests."""
    _graphs.clear()
    _told.clear()


def maybe_interpret(run: GraphRun, placement: Placement) -> Sequence[jax.Array] | None:
    """Computes a graph that no program is known of, if it is not worth one; None: it is to be compiled."""
    storms, first = settings.TORCH_XLA_STORM != "compile", settings.TORCH_XLA_FIRST_RUN
    if not storms and first == "compile":
        return None
    name, site = _graph_id(run), observer.current_site(run)
    seen = _graphs.get(name)
    if seen is None:
        in_storm = storms and _graphs.single_runs_at(site) >= _UNREPEATED
        waits = first == "auto" and (_is_large(run.graph) or _graphs.single_runs() >= _ANYWHERE)
        wanted = in_storm or waits or first == "eager"
    else:
        others = _graphs.single_runs_at(site) - (seen.runs == 1 and seen.site == site)
        in_storm = wanted = storms and seen.runs < _WORTH and (seen.in_storm or others >= _UNREPEATED)
    results = _run_interpreter(run, site if in_storm else None) if wanted and _can_interpret(run, placement) else None
    if results is not None:
        _graphs.record_run(name, site, in_storm)
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


def _run_interpreter(run: GraphRun, storm: observer.Site | None) -> Sequence[jax.Array] | None:
    record = observer.begin_interpretation(run)
    arrays = [replica_program.to_local_array(leaf) for leaf in run.leaves()]
    try:
        results = cpu_interpreter.interpret_graph(run, arrays)
    except (recorder.bindings().NotInterpretable, LoweringError) as error:
        metrics.count("InterpreterUnsupportedGraphs")
        _log.info("a graph of %d ops is compiled, as it cannot be interpreted: %s", run.graph.node_count, error)
        return None
    if storm is not None and storm not in _told:
        _told.add(storm)
        observer.on_unstable_site(run.graph, run.spec, storm, f"xla:{run.device}")
    run.graph.finish(results)
    metrics.count("InterpretedGraphs")
    record.finished()
    return results
