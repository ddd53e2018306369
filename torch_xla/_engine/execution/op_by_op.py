"""Runs a graph one operation at a time: each is compiled alone, and takes the values that those before it left.

    GraphSpec -> Chain of Steps -> run(floats, ints, buffers) -> roots

A Chain is kept by the graph's key, an operation's executable by what the operation is: its arguments by value, shapes
and dtypes. So two graphs share executables. Both tables forget the least recently used at XLA_COMPILATION_CACHE_SIZE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import SingleDeviceSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.compat import pjrt_execution
from torch_xla._engine.compilation import graph_function
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics, step_timings
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec, NodeSpec
from torch_xla._engine.lowering.registry import Promise
from torch_xla._engine.lowering.rules import jax_call
from torch_xla._engine.lowering.rules.matmul import Precision


@dataclass(frozen=True, slots=True)
class _OpCall:
    """One value of the graph. ``compiled`` None: the value is a number (``ints[0]``), or result ``item`` of another."""

    compiled: jax.stages.Compiled | None
    operands: tuple[int, ...]  # value numbers
    floats: tuple[int, ...]
    ints: tuple[int, ...]
    results: tuple[bool, ...] = ()  # which of the operation's results exist
    single: bool = True  # the value is an array, not a list of results
    item: int = 0
    last: tuple[int, ...] = ()  # values that nothing needs after this step


_executables: LruCache[jax.stages.Compiled] = LruCache(lambda: metrics.count("DestroyCompileHandles"))
_chains: LruCache[OpSequence] = LruCache(lambda: metrics.count("OpByOpGraphEvicted"))


#: A seed's 64 bits as the value of an operand: in two halves, as some devices store 64-bit integers as 32.
SEED: Promise = ((2,), torch.uint32)


def split_seed(seed: np.int64) -> np.ndarray:
    """The bits of a seed as a value of SEED, the low half first."""
    return np.asarray(seed, np.int64).reshape(1).view(np.uint32)


class SingleOpGraph:
    """One node as a graph of its own, its operands numbered anew in order of use."""

    def __init__(self, node: NodeSpec) -> None:
        self.operands: list[int] = []
        self.floats: list[int] = []
        self.ints: list[int] = []
        self.node = replace(node, args=[self._argument(a) for a in node.args])
        self.results = tuple(dtype is not None for _, dtype in node.outs)
        self.single = not node.is_list and len(node.outs) == 1

    def _argument(self, arg: tuple[int, Any]) -> tuple[int, Any]:
        tag, payload = arg
        if tag == 1:
            return tag, _position(self.operands, payload)
        if tag in (2, 7):
            return tag, [self._argument(a) for a in payload]
        if tag == 3:
            self.floats.append(payload)
            return tag, len(self.floats) - 1
        if tag == 4:
            self.ints.append(payload)
            return tag, len(self.ints) - 1
        if tag == 5:
            self.floats += [payload, payload + 1]
            return tag, len(self.floats) - 2
        return arg

    def spec(self, leaves: list[Promise], products: Precision) -> GraphSpec:
        first = len(leaves)
        if self.single:
            return GraphSpec(leaves, [self.node], [first], [], products)  # type: ignore[arg-type]
        items = [
            NodeSpec("torch_xla::getitem", 0, [(1, first), (0, i)], [out], False)
            for i, (out, exists) in enumerate(zip(self.node.outs, self.results, strict=True))
            if exists
        ]
        roots = list(range(first + 1, first + 1 + len(items)))
        return GraphSpec(leaves, [self.node, *items], roots, [], products)  # type: ignore[arg-type]


def _position(items: list[int], item: int) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def compile_op(alone: SingleOpGraph, leaves: list[Promise], device: int, products: Precision) -> jax.stages.Compiled:
    """The program of one node: (floats, ints, *operands) -> those of its results that exist."""
    key = (device, products, repr((replace(alone.node, origin=None), leaves)))
    found = _executables.get(key)
    if found is not None:
        metrics.count("OpByOpCompileCacheHit")
        return found
    metrics.count("OpByOpCompileCacheMiss")
    place = SingleDeviceSharding(devices.device(device))
    arguments = [
        jax.ShapeDtypeStruct(shape, dtypes.storage_numpy_dtype(dtype)) for shape, dtype in leaves if dtype is not None
    ]
    floats = jax.ShapeDtypeStruct((len(alone.floats),), np.float64)
    ints = jax.ShapeDtypeStruct((len(alone.ints),), np.int64)
    with (
        metrics.record_time("EagerOpCompileTime" if eager_mode.is_eager() else "CompileTime"),
        library.kernels_enabled(devices.device(device).platform) as (handlers, called),
    ):
        jitted = jax.jit(
            graph_function.graph_function(alone.spec(leaves, products)),
            in_shardings=place,
            out_shardings=place,
            keep_unused=True,
        )
        found = jitted.lower(floats, ints, *arguments).compile()
    metrics.count("CreateCompileHandles")
    if handlers is not None and called:
        metrics.count("CpuKernelCalls", called.total())
        handlers.set_thread_count(pjrt_execution.has_python_callbacks(found))
    _executables.put(key, found, jax_call.bytes_of([alone.node]))
    return found


class OpSequence:
    """A graph as a sequence of executables. Never changes; may be run by several threads."""

    def __init__(self, spec: GraphSpec, device: int) -> None:
        self._roots = spec.roots
        promises: list[Promise] = list(spec.leaves)
        steps: list[_OpCall] = []
        for node in spec.nodes:
            step, promise = self._step(node, promises, device, spec.precision)
            steps.append(step)
            promises.append(promise)
        self._steps = self._with_last_uses(steps, len(spec.leaves))

    @staticmethod
    def _step(node: NodeSpec, promises: list[Promise], device: int, products: Precision) -> tuple[_OpCall, Promise]:
        if node.op == "torch_xla::seed":
            return _OpCall(None, (), (), (node.args[0][1],)), SEED
        if node.op == "torch_xla::getitem":
            producer, item = node.args[0][1], node.args[1][1]
            return _OpCall(None, (producer,), (), (), item=item), node.outs[0]
        alone = SingleOpGraph(node)
        executable = compile_op(alone, [promises[i] for i in alone.operands], device, products)
        step = _OpCall(
            executable, tuple(alone.operands), tuple(alone.floats), tuple(alone.ints), alone.results, alone.single
        )
        return step, node.outs[0] if node.outs else ((), None)

    def _with_last_uses(self, steps: list[_OpCall], leaves: int) -> list[_OpCall]:
        kept = set(self._roots)
        out = []
        for position in range(len(steps) - 1, -1, -1):
            step = steps[position]
            # A value that nobody uses, not even as a root, dies where it is made.
            last = tuple(v for v in (*step.operands, leaves + position) if v not in kept)
            kept.update(last)
            out.append(replace(step, last=last))
        return out[::-1]

    def __len__(self) -> int:
        return sum(step.compiled is not None for step in self._steps)

    def run(self, floats: Any, ints: Any, buffers: Sequence[Any]) -> list[jax.Array]:
        """The roots; all are under way when it returns."""
        values: list[Any] = list(buffers)
        for step in self._steps:
            values.append(self._value(step, values, floats, ints))
            for position in step.last:
                values[position] = None
        return [values[root] for root in self._roots]

    @staticmethod
    def _value(step: _OpCall, values: list[Any], floats: Any, ints: Any) -> Any:
        if step.compiled is None:
            return values[step.operands[0]][step.item] if step.operands else split_seed(ints[step.ints[0]])
        operands = [values[i] for i in step.operands]
        results = step.compiled(floats[list(step.floats)], ints[list(step.ints)], *operands)
        if step.single:
            return results[0]
        found = iter(results)
        return [next(found) if exists else None for exists in step.results]


def run_op_by_op(graph_run: GraphRun, buffers: Sequence[Any]) -> list[jax.Array]:
    """The roots of a graph, computed one operation at a time."""
    key = (graph_run.device, graph_run.graph.key, graph_run.precision)
    chain = _chains.get(key)
    with recorder.enable_x64():
        if chain is None:
            chain = OpSequence(graph_run.spec, graph_run.device)
            _chains.put(key, chain, jax_call.bytes_of(graph_run.spec.nodes))
        metrics.metric("OpByOpGraphSize").add(len(chain))
        with step_timings.timed_block("EagerOpExecuteTime" if eager_mode.is_eager() else "ExecuteChainedTime"):
            return chain.run(*graph_run.scalars(), buffers)
