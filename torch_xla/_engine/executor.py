"""Runs what has been recorded: collect a graph, find or compile its program, execute it, give the nodes their values.

One thread at a time, per device, is between collect and finish (Turn). Nothing changes before finish, so an error on
the way (a rule that fails, XLA that refuses, memory that runs out) leaves every tensor as it was.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from torch_xla._engine import (
    compile_cache,
    devices,
    dump,
    frames,
    metrics,
    modes,
    observer,
    op_by_op,
    precision,
    program,
    recorder,
)
from torch_xla._engine.lowering.matmul import Precision
from torch_xla._engine.settings import settings


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph. ``compiled`` is called with (floats, ints, *leaves) and returns the roots."""

    compiled: jax.stages.Compiled
    spec: program.GraphSpec
    sizes: observer.Sizes


#: What a program was compiled for: a device, the recorder's key of the graph, and how exact its products are.
Key = tuple[int, bytes, Precision]


class ProgramCache:
    """The compiled programs by key, least recently used first; at most XLA_COMPILATION_CACHE_SIZE of them."""

    def __init__(self) -> None:
        self._programs: OrderedDict[Key, Program] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Program | None:
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
            return found

    def put(self, key: Key, value: Program) -> None:
        with self._lock:
            self._programs[key] = value
            while len(self._programs) > settings.XLA_COMPILATION_CACHE_SIZE:
                self._programs.popitem(last=False)
                metrics.count("DestroyCompileHandles")

    def __len__(self) -> int:
        return len(self._programs)

    def clear(self) -> None:
        with self._lock:
            self._programs.clear()


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


programs = ProgramCache()
_turns: dict[int, Turn] = {}


def turn(device: int) -> Turn:
    """The device's Turn; to be held while its graph is collected, run or looked at."""
    return _turns.setdefault(device, Turn())


def compile_graph(spec: program.GraphSpec, device: int, floats: Any, ints: Any, buffers: Sequence[Any]) -> Program:
    """Compiles a graph for the device, or loads what another process compiled.

    Raises LoweringError for an op that cannot be built.
    """
    place = SingleDeviceSharding(devices.device(device))
    donated = tuple(position + 2 for position in spec.donated)
    jitted = jax.jit(
        program.function(spec), donate_argnums=donated, in_shardings=place, out_shardings=place, keep_unused=True
    )
    compiled = compile_cache.build(lambda: jitted.lower(floats, ints, *buffers), [devices.device(device)])
    metrics.count("CreateCompileHandles")
    metrics.metric("InputOutputAliasCount").add(len(donated))
    observer.compiled(compiled)
    return Program(compiled, spec, observer.sizes(compiled))


def _program(graph: Any, device: int, floats: Any, ints: Any, buffers: list[Any]) -> Program:
    products = precision.current()
    key = (device, graph.key, products)
    found = programs.get(key)
    if found is not None:
        metrics.count("CachedSyncTensors")
        return found
    metrics.count("UncachedSyncTensors")
    spec = program.describe(graph, products)
    with observer.compilation(graph, spec, device):
        found = compile_graph(spec, device, floats, ints, buffers)
    programs.put(key, found)
    return found


def _run(graph: Any, device: int, one_by_one: bool, section: str) -> list[jax.Array]:
    modes.before_run(graph.key)
    metrics.metric("TensorsGraphSize").add(graph.node_count)
    with jax.enable_x64(True):
        floats, ints, buffers = graph.floats(), graph.ints(), graph.inputs()
        dump.append(section, graph, (floats, ints, *buffers))
        if one_by_one or modes.eager():
            results: list[jax.Array] = op_by_op.run(graph, floats, ints, buffers)
            sizes = None
        else:
            found = _program(graph, device, floats, ints, buffers)
            sizes = found.sizes.results
            observer.execution(graph, device, found.sizes)
            with metrics.timed("ExecuteTime"):
                results = found.compiled(floats, ints, *buffers)
    del buffers
    graph.finish(results, sizes)
    return results


def sync_device(device: int, wait: bool = False) -> None:
    """Runs everything pending on the device; with ``wait`` returns when it is done, else when it is under way."""
    one_by_one = settings.XLA_SYNC_TENSORS_OPBYOP
    section = dump.SYNC_OP_BY_OP if one_by_one else dump.SYNC
    with turn(device):
        graph = recorder.module().collect(device)
        results = _run(graph, device, one_by_one, section) if graph.root_count else []
    if wait:
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
    observer.wait(recorder.module().live_buffers(device))


def on_devices(call: Callable[[int], None]) -> None:
    """Calls ``call(ordinal)`` for every device, if a backend has started."""
    if devices.started():
        for ordinal in range(len(devices.devices())):
            call(ordinal)
