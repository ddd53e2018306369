"""Runs a graph one operation at a time; each operation is a separately compiled program.

    GraphSpec -> OpSequence of _OpCalls -> run(floats, ints, buffers) -> outputs

An OpSequence is cached by the graph's key, an op's executable by its arguments, shapes and dtypes. So different graphs
share executables. Both caches are LRU, limited by XLA_COMPILATION_CACHE_SIZE.
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
from torch_xla._engine.compat import lowering_caches
from torch_xla._engine.compilation import graph_function
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.diagnostics import metrics, step_timings
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import FUNCTIONAL, LIST_TAGS, ArgTag, GraphSpec, NodeSpec
from torch_xla._engine.lowering import value_checks
from torch_xla._engine.lowering.registry import TensorSpec
from torch_xla._engine.lowering.rules import jax_call
from torch_xla._engine.lowering.rules.matmul import Precision


@dataclass(frozen=True, slots=True)
class _OpCall:
    """One value of the graph. With ``compiled`` None, a scalar (``ints[0]``) or output ``item`` of another value."""

    compiled: jax.stages.Compiled | None
    operands: tuple[int, ...]  # value numbers
    floats: tuple[int, ...]
    ints: tuple[int, ...]
    results: tuple[bool, ...] = ()  # which outputs of the op exist
    single: bool = True  # the value is an array, not a list of outputs
    item: int = 0
    last: tuple[int, ...] = ()  # values whose last use is this op
    op: str = ""


#: The number and op of a node, and what its program found (lowering/value_checks.py).
CheckResult = tuple[int, str, jax.Array]

_executables: LruCache[jax.stages.Compiled] = LruCache(lambda: metrics.count("DestroyCompileHandles"))
_sequences: LruCache[OpSequence] = LruCache(lambda: metrics.count("OpByOpGraphEvicted"))


#: Spec of a seed operand: 64 bits in two halves, as some devices store 64-bit integers in 32 bits.
SEED: TensorSpec = ((2,), torch.uint32)


def split_seed(seed: np.int64) -> np.ndarray:
    """Return the bits of a seed as a value of SEED, low half first."""
    return np.asarray(seed, np.int64).reshape(1).view(np.uint32)


class SingleOpGraph:
    """One node as a separate graph; its operands are renumbered in order of use."""

    def __init__(self, node: NodeSpec) -> None:
        self.operands: list[int] = []
        self.floats: list[int] = []
        self.ints: list[int] = []
        self.node = replace(node, args=[self._argument(a) for a in node.args])
        self.results = tuple(dtype is not None for _, dtype in node.outs)
        self.single = not node.is_list and len(node.outs) == 1

    def _argument(self, arg: tuple[int, Any]) -> tuple[int, Any]:
        tag, payload = arg
        if tag == ArgTag.VALUE:
            return tag, _position(self.operands, payload)
        if tag in LIST_TAGS:
            return tag, [self._argument(a) for a in payload]
        if tag == ArgTag.FLOAT_INPUT:
            self.floats.append(payload)
            return tag, len(self.floats) - 1
        if tag == ArgTag.INT_INPUT:
            self.ints.append(payload)
            return tag, len(self.ints) - 1
        if tag == ArgTag.COMPLEX_INPUT:
            self.floats += [payload, payload + 1]
            return tag, len(self.floats) - 2
        return arg

    def spec(self, leaves: list[TensorSpec], precision: Precision) -> GraphSpec:
        first = len(leaves)
        if self.single:
            return GraphSpec(leaves, [self.node], [first], [], precision)  # type: ignore[arg-type]
        items = [
            NodeSpec("torch_xla::getitem", FUNCTIONAL, [(ArgTag.VALUE, first), (ArgTag.CONSTANT, i)], [out], False)
            for i, (out, exists) in enumerate(zip(self.node.outs, self.results, strict=True))
            if exists
        ]
        roots = list(range(first + 1, first + 1 + len(items)))
        return GraphSpec(leaves, [self.node, *items], roots, [], precision)  # type: ignore[arg-type]


def _position(items: list[int], item: int) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def compile_op(
    alone: SingleOpGraph, leaves: list[TensorSpec], device: int, precision: Precision
) -> jax.stages.Compiled:
    """Compile one node to a program (floats, ints, *operands) -> the outputs that exist, and the result of its checks.

    The latter only if the device checks values and the node has any to check (lowering/value_checks.py).
    """
    key = (device, precision, repr((replace(alone.node, origin=None), leaves)))
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
    checked = value_checks.is_enabled(capabilities.runs_in_process(devices.device(device)))
    with (
        metrics.record_time("EagerOpCompileTime" if eager_mode.is_eager() else "CompileTime"),
        library.kernels_enabled(devices.device(device)) as (handlers, called),
    ):
        jitted = jax.jit(
            graph_function.graph_function(alone.spec(leaves, precision), checked),
            in_shardings=place,
            out_shardings=place,
            keep_unused=True,
        )
        found = jitted.lower(floats, ints, *arguments).compile()
        lowering_caches.release_jaxprs()
    metrics.count("CreateCompileHandles")
    if handlers is not None and called:
        metrics.count("CpuKernelCalls", called.total())
        handlers.set_thread_count()
    _executables.put(key, found, jax_call.bytes_of([alone.node]))
    return found


class OpSequence:
    """A graph as a sequence of executables. Immutable; several threads may run it."""

    def __init__(self, spec: GraphSpec, device: int) -> None:
        self._roots = spec.roots
        specs: list[TensorSpec] = list(spec.leaves)
        steps: list[_OpCall] = []
        for node in spec.nodes:
            step, output = self._step(node, specs, device, spec.precision)
            steps.append(step)
            specs.append(output)
        self._steps = self._with_last_uses(steps, len(spec.leaves))

    @staticmethod
    def _step(node: NodeSpec, specs: list[TensorSpec], device: int, precision: Precision) -> tuple[_OpCall, TensorSpec]:
        if node.op == "torch_xla::seed":
            return _OpCall(None, (), (), (node.args[0][1],)), SEED
        if node.op == "torch_xla::getitem":
            producer, item = node.args[0][1], node.args[1][1]
            return _OpCall(None, (producer,), (), (), item=item), node.outs[0]
        alone = SingleOpGraph(node)
        executable = compile_op(alone, [specs[i] for i in alone.operands], device, precision)
        step = _OpCall(
            executable,
            tuple(alone.operands),
            tuple(alone.floats),
            tuple(alone.ints),
            alone.results,
            alone.single,
            op=node.op,
        )
        return step, node.outs[0] if node.outs else ((), None)

    def _with_last_uses(self, steps: list[_OpCall], leaves: int) -> list[_OpCall]:
        used = set(self._roots)
        out = []
        for position in range(len(steps) - 1, -1, -1):
            step = steps[position]
            # A value that is neither used nor an output is released by the op that computes it.
            last = tuple(v for v in (*step.operands, leaves + position) if v not in used)
            used.update(last)
            out.append(replace(step, last=last))
        return out[::-1]

    def __len__(self) -> int:
        return sum(step.compiled is not None for step in self._steps)

    def run(self, floats: Any, ints: Any, buffers: Sequence[Any]) -> tuple[list[jax.Array], list[CheckResult]]:
        """Return the outputs and the results of checks; all ops have been launched when it returns."""
        values: list[Any] = list(buffers)
        rows: list[CheckResult] = []
        for number, step in enumerate(self._steps):
            value, row = self._value(step, values, floats, ints)
            values.append(value)
            if row is not None:
                rows.append((number, step.op, row))
            for position in step.last:
                values[position] = None
        return [values[root] for root in self._roots], rows

    @staticmethod
    def _value(step: _OpCall, values: list[Any], floats: Any, ints: Any) -> tuple[Any, jax.Array | None]:
        """Return the value of a step, and the result of its checks, if it has any."""
        if step.compiled is None:
            return values[step.operands[0]][step.item] if step.operands else split_seed(ints[step.ints[0]]), None
        operands = [values[i] for i in step.operands]
        found = iter(step.compiled(floats[list(step.floats)], ints[list(step.ints)], *operands))
        value = next(found) if step.single else [next(found) if exists else None for exists in step.results]
        return value, next(found, None)


def run_op_by_op(graph_run: GraphRun, buffers: Sequence[Any]) -> tuple[list[jax.Array], list[CheckResult]]:
    """Return the outputs of a graph, computed one operation at a time, and the results of checks."""
    key = (graph_run.device, graph_run.graph.key, graph_run.precision)
    sequence = _sequences.get(key)
    with recorder.enable_x64():
        if sequence is None:
            sequence = OpSequence(graph_run.spec, graph_run.device)
            _sequences.put(key, sequence, jax_call.bytes_of(graph_run.spec.nodes))
        metrics.metric("OpByOpGraphSize").add(len(sequence))
        with step_timings.timed_block("EagerOpExecuteTime" if eager_mode.is_eager() else "ExecuteChainedTime"):
            return sequence.run(*graph_run.scalars(), buffers)
