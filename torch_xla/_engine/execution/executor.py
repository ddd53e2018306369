"""Runs what has been recorded: collect a graph, find or compile its program, execute it, give the nodes their values.

One thread at a time, per device, is between collect and finish (Turn). Nothing changes before finish, so an error on
the way (a rule that fails, XLA that refuses, memory that runs out) leaves every tensor as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base import frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices, precision
from torch_xla._engine.diagnostics import errors, metrics, observer
from torch_xla._engine.execution import dump, modes, op_by_op, programs
from torch_xla._engine.execution.programs import Program, compile_graph
from torch_xla._engine.graph import program
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.parallel import agreement, collectives, replicated, sharded, watchdog


class Turn:
    """Whose turn it is to run a graph of one device: free -> taken by a thread -> free. Others wait.

    The thread that has it may not take it again: between collect and finish the recorder's graph must not change. Only
    code that runs in between unasked (a ``__del__`` that the garbage collector calls, a signal handler) can try.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._taken = False

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._taken:
            self._lock.release()
            raise RuntimeError(
                "torch_xla: a value was asked for while a graph of the same device was being built on this thread, by "
                f"{frames.user_line()}; a __del__ method or signal handler must not read xla tensors"
            )
        self._taken = True

    def __exit__(self, *_: object) -> None:
        self._taken = False
        self._lock.release()


#: In place of a device in the key of a program that threads run together, over all devices, and of one of SPMD.
_ALL, _MESH = -1, -2

_turns: dict[int, Turn] = {}


def turn(device: int) -> Turn:
    """The device's Turn; to be held while its graph is collected, run or looked at."""
    return _turns.setdefault(device, Turn())


def _program(graph: Any, device: int, arguments: list[Any]) -> Program:
    """The program of a graph. The arguments are then as it takes them."""
    products = precision.current()
    key = (_MESH if replicas.is_spmd() else device, graph.key, products)
    found = programs.cache.get(key)
    if found is not None:
        metrics.count("CachedSyncTensors")
        arguments[:] = _placed(arguments, found.team)
        return found
    metrics.count("UncachedSyncTensors")
    spec = program.describe(graph, products)
    team = _team_of(spec)
    if team is not None:
        agreement.check(spec, team)
    arguments[:] = _placed(arguments, team)
    with observer.compilation(graph, spec, device):
        found = compile_graph(spec, device, arguments, team)
    programs.cache.put(key, found)
    return found


def _team_of(spec: program.GraphSpec) -> replicated.Team | None:
    """Who runs a program together: with SPMD all processes run every one."""
    if not replicas.is_spmd():
        return replicated.team_of(spec)
    processes = tuple(range(replicas.process_count()))
    return replicated.Team(processes, sharded.replicated()) if len(processes) > 1 else None


def _run_among(threads: thread_group.Meeting, graph: Any, device: int, arguments: list[Any]) -> list[jax.Array] | None:
    """The results of a graph with collectives, which the threads of all replicas run as one; None for another graph."""
    products = precision.current()
    key = (_ALL, graph.key, products)
    known = programs.cache.get(key)
    if known is None and programs.cache.get((device, graph.key, products)) is not None:
        return None
    spec = known.spec if known else program.describe(graph, products)
    team = known.team if known else replicated.team_of(spec)
    if team is None:
        return None
    metrics.count("CachedSyncTensors" if known else "UncachedSyncTensors")

    def call(lifted: list[jax.Array]) -> list[jax.Array]:
        ready = programs.cache.get(key)
        if ready is None:
            with observer.compilation(graph, spec, device):
                ready = compile_graph(spec, device, lifted, team)
            programs.cache.put(key, ready)
        doing = lambda: f"running {errors.describe_graph(ready.spec)}"
        with metrics.timed("ExecuteTime"), errors.explained(doing, device, ready.spec):
            results: list[jax.Array] = ready.compiled(*lifted)
        return results

    with observer.execution(graph, device, known.sizes if known else observer.Sizes([])):
        return thread_group.run(threads, agreement.summary(spec, graph.key), arguments, team.sharding, call)


def _placed(arguments: list[Any], team: replicated.Team | None) -> list[Any]:
    if replicas.is_spmd():
        return sharded.placed(arguments)
    if team is not None:
        return replicated.lift(arguments, team)
    if replicas.process_count() == 1:
        return arguments
    return [*arguments[:2], *map(replicated.local, arguments[2:])]


def _exchanges(graph: Any) -> bool:
    """Whether replicas exchange values in the graph."""
    return replicas.world_size() > 1 and replicated.team_of(program.describe(graph)) is not None


def _execute(
    graph: Any, device: int, arguments: list[Any], one_by_one: bool
) -> tuple[list[jax.Array], list[int] | None, list[int] | None]:
    """The results, and where known their sizes in bytes and their shardings.

    A graph over several devices always runs as a whole.
    """
    if one_by_one and not replicas.is_spmd() and not _exchanges(graph):
        floats, ints, *buffers = _placed(arguments, None)
        return op_by_op.run(graph, floats, ints, buffers), None, None
    threads = thread_group.current()
    results = _run_among(threads, graph, device, arguments) if threads else None
    if results is not None:
        return results, None, None
    found = _program(graph, device, arguments)
    if found.team is not None:
        watchdog.launching(found.spec, found.team)
    doing = lambda: f"running {errors.describe_graph(found.spec)}"
    with (
        observer.execution(graph, device, found.sizes),
        metrics.timed("ExecuteTime"),
        errors.explained(doing, device, found.spec),
    ):
        results = found.compiled(*arguments)
    if found.team is not None:
        watchdog.launched(results, found.sizes.smallest)
    return results, found.sizes.results, found.shardings


def _run(graph: Any, device: int, one_by_one: bool, section: str) -> list[jax.Array]:
    modes.before_run(graph.key)
    metrics.metric("TensorsGraphSize").add(graph.node_count)
    devices.devices()  # raises in a process that was forked from one with programs and buffers
    with jax.enable_x64(True):
        arguments = [graph.floats(), graph.ints(), *graph.inputs()]
        dump.append(section, graph, tuple(arguments))
        results, sizes, numbers = _execute(graph, device, arguments, one_by_one or modes.eager())
    del arguments
    graph.finish(results, sizes, numbers)
    return results


def sync_device(device: int, wait: bool = False) -> None:
    """Runs everything pending on the device; with ``wait`` returns when it is done, else when it is under way."""
    one_by_one = settings.XLA_SYNC_TENSORS_OPBYOP
    section = dump.SYNC_OP_BY_OP if one_by_one else dump.SYNC
    with turn(device):
        graph = recorder.module().collect(device)
        results = _run(graph, device, one_by_one, section) if graph.root_count else []
        collectives.release(device)
    if wait:
        with errors.explained(lambda: "waiting for a graph", device):
            observer.wait(results)


def materialize(nodes: Sequence[Any], device: int) -> None:
    """Makes sure that the recorder's ``nodes`` of one device have values (which may still be computing)."""
    one_by_one = settings.XLA_GET_TENSORS_OPBYOP
    section = dump.GET_OP_BY_OP if one_by_one else dump.SYNC
    with turn(device):
        pending = [node for node in nodes if node.pending]
        if pending:
            _run(recorder.module().collect(device, pending), device, one_by_one, section)


def wait(device: int) -> None:
    """Waits for all that has been started on the device."""
    with errors.explained(lambda: "waiting for what was started", device):
        observer.wait(recorder.module().live_buffers(device))


def on_devices(call: Callable[[int], None]) -> None:
    """Calls ``call(ordinal)`` for every device, if a backend has started."""
    if devices.started():
        for ordinal in range(devices.count()):
            call(ordinal)
