"""Interprets a graph on the host CPU without compiling it: ATen's kernels run on the buffers' memory.

The recorder visits the nodes (csrc/interpreter/graph_interpreter.cpp). Ops without an ATen kernel, and all random ops,
are computed by their lowering rule, compiled separately as in op_by_op.py: so a random op has the same values in a
program and in the interpreter. ATen's kernels raise errors for indices out of range; the graph is then compiled, and
its program determines the values and the error (value_errors.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.cpu_backend import malloc_tuning
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.execution import op_by_op
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import ArgTag, NodeSpec
from torch_xla._engine.lowering.recorder_ops import STRIDE
from torch_xla._engine.lowering.registry import RULES, TensorSpec

_LARGE_RESULT = 1 << 20  # bytes
_MOST_FREED = 64 << 20  # bytes that malloc may retain, as in malloc_tuning.py


def interpret_graph(graph_run: GraphRun, arrays: Sequence[jax.Array], is_unstable: bool = False) -> list[jax.Array]:
    """Return the outputs of a graph for its inputs ``arrays``. Raises a kernel's error; nothing has changed then.

    Unless the call site is unstable, so that the next graph is another one, a program can take over large outputs.
    """
    stored = [
        (dtypes.TO_CODE[dtype], dtypes.TO_CODE[narrow]) for dtype, narrow in dtypes.storage_dtype_overrides().items()
    ]
    with recorder.enable_x64():
        for array in arrays:
            array.block_until_ready()
        results = recorder.bindings().interpret(graph_run.graph, list(arrays), stored, _FallbackOps(graph_run))
        if is_unstable:
            return [_array(result, graph_run.device) for result in results]
        return list(_move_results(results, graph_run.device))


def _move_results(results: list[Any], device: int) -> Iterator[jax.Array]:
    """Yield the results as arrays, large ones in memory that XLA has allocated, and empty the list.

    XLA does not overwrite a donated buffer that it has not allocated: it copies it, and holds two copies of a model.
    Here one result is copied after the other.
    """
    copied = 0
    results.reverse()
    while results:
        array = _array(results.pop(), device)
        if array.nbytes >= _LARGE_RESULT:
            array = jax.device_put(array, devices.device(device), may_alias=False).block_until_ready()
            copied += array.nbytes
        yield array
        if copied > _MOST_FREED:
            malloc_tuning.trim_free_memory()
            copied = 0


def _array(memory: Any, device: int) -> jax.Array:
    """Wrap the recorder's HostTensor as an array, which owns it. Programs read that memory and never write to it."""
    array: jax.Array = jax.dlpack.from_dlpack(memory, device=devices.device(device))
    return array


class _FallbackOps:
    """Computes nodes without an ATen kernel by their lowering rules; the recorder calls it during interpretation."""

    def __init__(self, run: GraphRun) -> None:
        self._run = run

    def __call__(self, number: int, operands: dict[int, Any]) -> list[jax.Array | None]:
        """Return the outputs of node ``number``; ``operands`` maps value numbers to memory and contains no seeds."""
        metrics.count("InterpreterFallbackOps")
        run, (floats, ints) = self._run, self._run.scalars()
        node, seed = self._normalize_seed(run.spec.nodes[number], ints)
        if _is_elementwise_random(node, operands):
            node, operands = _pad_draw_length(node, operands)
        alone = op_by_op.SingleOpGraph(node)
        specs: list[TensorSpec] = []
        values: list[Any] = []
        for operand in alone.operands:
            memory = operands.get(operand)
            specs.append(op_by_op.SEED if memory is None else (memory.shape, dtypes.FROM_CODE[memory.dtype]))
            values.append(seed if memory is None else _array(memory, run.device))
        compiled = op_by_op.compile_op(alone, specs, run.device, run.precision)
        made = iter(compiled(floats[alone.floats], ints[alone.ints], *values))
        results = [None if dtype is None else next(made) for _, dtype in node.outs]
        row = next(made, None)
        if row is not None and np.asarray(row)[0]:
            raise recorder.bindings().NotInterpretable(f"{node.op}: a value is out of range")
        return results

    def _normalize_seed(self, node: NodeSpec, ints: np.ndarray) -> tuple[NodeSpec, np.ndarray | None]:
        """Return a random node as the first draw after a seed, and that seed: equal draws share one program."""
        rule = RULES.get(node.op)
        if rule is None or not rule.random:
            return node, None
        spec = self._run.spec
        *args, (_, seed), (_, draws) = node.args
        ((_, position),) = spec.nodes[seed - len(spec.leaves)].args
        moved = op_by_op.split_seed(ints[position]) + np.array([draws * s % 2**32 for s in STRIDE], np.uint32)
        return replace(node, args=[*args, (ArgTag.VALUE, seed), (ArgTag.CONSTANT, 0)]), moved


def _is_elementwise_random(node: NodeSpec, operands: dict[int, Any]) -> bool:
    """Return whether a longer output of the node starts with the same elements (Rule.each), given its operands.

    Holds for jax's random numbers if threefry is partitionable, which is the default.
    """
    rule, (shape, dtype) = RULES.get(node.op), node.outs[0]
    return (
        rule is not None
        and rule.elementwise_random
        and jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # jax makes its attributes as it runs
        and dtype is not None
        and not dtype.is_complex
        and all(memory.shape in (shape, ()) for memory in operands.values())
    )


def _pad_draw_length(node: NodeSpec, operands: dict[int, Any]) -> tuple[NodeSpec, dict[int, Any]]:
    """Return the node with flat outputs padded to a power of two, so that draws of many shapes share few programs."""
    shape, _ = node.outs[0]
    length = 1 << max(math.prod(shape) - 1, 0).bit_length()
    outs: list[TensorSpec] = [((length,), dtype) for _, dtype in node.outs]
    args = [
        (ArgTag.CONSTANT, [length]) if tag == ArgTag.CONSTANT and isinstance(payload, list) else (tag, payload)
        for tag, payload in node.args
    ]
    padded = {
        number: memory if shape and not memory.shape else memory.padded(length) for number, memory in operands.items()
    }
    return replace(node, args=args, outs=outs), padded
