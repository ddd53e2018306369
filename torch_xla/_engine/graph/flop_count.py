"""Count the floating-point operations of a graph: matmuls, convolutions, attention, recurrent layers.

A multiplication and an addition are two operations. Elementwise ops and reductions count as none, as in model FLOPs
utilization (Chowdhery et al., "PaLM", appendix B). A causal mask halves nothing. Recomputed activations count: with
activation checkpointing the figure is that of the hardware.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.compat.flop_formulas import flop_formulas
from torch_xla._engine.graph.graph_spec import LIST_TAGS, ArgTag, GraphSpec, NodeSpec, operands
from torch_xla._engine.graph.jaxpr_flops import Flops, add_flops, count_function
from torch_xla._engine.lowering.rules import jax_call

Shape = tuple[int, ...]
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ProgramWork:
    """The FLOPs of one run of a program, of all its devices together.

    Calls of jax functions are traced when ``flops`` is first read: a program that is loaded needs no trace.

    Args:
      counted: FLOPs by the name of the operands' dtype; once ``calls`` is empty, of the whole program.
      devices: the number of devices that share the work.
      calls: the numbers of the jax functions that the graph calls, and the specs of their inputs.
    """

    counted: Flops
    devices: int = 1
    calls: Sequence[tuple[int, list[jax.ShapeDtypeStruct]]] = ()

    @property
    def flops(self) -> Flops:
        """FLOPs by the name of the operands' dtype; without those of functions that were evicted before the read."""
        if self.calls:
            total = dict(self.counted)
            for number, inputs in self.calls:
                add_flops(total, _count_call(number, inputs))
            self.counted, self.calls = total, ()
        return self.counted


NO_WORK = ProgramWork({})


def measure_work(spec: GraphSpec, devices: int) -> ProgramWork:
    """Return the work of one run of a graph on a number of devices."""
    total: Flops = {}
    calls = []
    for node in spec.nodes:
        if node.op == jax_call.OP:
            calls.append((node.args[1][1], [_struct(*spec.value_spec(value)) for value in operands(node)]))
            continue
        name = node.op.partition(".")[0]
        formula = _FORMULAS.get(name) or flop_formulas().get(name)
        if formula is not None and (reads := operands(node)):
            dtype = str(spec.value_spec(reads[0])[1]).removeprefix("torch.")
            add_flops(total, {dtype: float(_apply_formula(formula, spec, node))})
    return ProgramWork(total, devices, calls)


def _apply_formula(formula: Callable[..., int], spec: GraphSpec, node: NodeSpec) -> int:
    shapes = [tuple(shape) for shape, _ in node.outs]
    return formula(*(_argument(spec, arg) for arg in node.args), out_val=shapes[0] if len(shapes) == 1 else shapes)


def _argument(spec: GraphSpec, arg: tuple[int, Any]) -> Any:
    """Return an argument as the formulas take it: the shape of a tensor, a constant, or None for a number."""
    tag, payload = arg
    if tag == ArgTag.VALUE:
        return tuple(spec.value_spec(payload)[0])
    if tag in LIST_TAGS:
        return [_argument(spec, part) for part in payload]
    return payload if tag == ArgTag.CONSTANT else None


def _count_linear(inputs: Shape, weight: Shape, *_: Any, out_val: Shape) -> int:
    return 2 * int(np.prod(out_val)) * weight[-1]


def _count_matmul(left: Shape, right: Shape, *_: Any, out_val: Shape) -> int:
    return 2 * int(np.prod(out_val)) * left[-1]


def _count_recurrent(inputs: Shape, state: Sequence[Shape], weights: Sequence[Shape], *_: Any, out_val: Any) -> int:
    """Each time step multiplies each sequence with all matrices once. ``inputs``: (time, batch, features)."""
    steps, batch = inputs[:2]
    return 2 * steps * batch * sum(int(np.prod(weight)) for weight in weights if weight and len(weight) == 2)


def _count_recurrent_backward(grads: Any, inputs: Shape, state: Any, weights: Any, *_: Any, out_val: Any) -> int:
    return 2 * _count_recurrent(inputs, state, weights, out_val=out_val)


#: Ops that torch's formulas do not name, since torch decomposes them before it counts.
_FORMULAS: dict[str, Callable[..., int]] = {
    "aten::linear": _count_linear,
    "aten::matmul": _count_matmul,
    "aten::mv": _count_matmul,
    "aten::dot": _count_matmul,
    "torch_xla::rnn_layer": _count_recurrent,
    "torch_xla::rnn_layer_backward": _count_recurrent_backward,
}


def _count_call(number: int, inputs: list[jax.ShapeDtypeStruct]) -> Flops:
    """Return the FLOPs of a call of a jax function: scan, control flow, Pallas kernels, pure functions."""
    function = jax_call.find_function(number)
    if function is None:
        return {}
    try:
        with recorder.enable_x64():
            return count_function(function.call, inputs[: function.arity])
    except Exception:
        _log.info("could not count the FLOPs of %s", function.name, exc_info=True)  # the figure of a report
        return {}


def _struct(shape: Shape, dtype: torch.dtype | None) -> jax.ShapeDtypeStruct:
    assert dtype is not None  # only results that no node reads have none
    return jax.ShapeDtypeStruct(tuple(shape), dtypes.numpy_dtype(dtype))
