"""Converts a recorded graph to a jax function that applies the nodes' lowering rules in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.compilation import cpu_scheduling, foreach_fusion, hlo_metadata, manual_sharding
from torch_xla._engine.graph.graph_spec import IN_PLACE, LIST_TAGS, SCATTER, ArgTag, GraphSpec, NodeSpec, operands
from torch_xla._engine.lowering import RULES, cpu_kernel_call, decompose, value_checks
from torch_xla._engine.lowering.apply_rule import LoweringError, apply_rule
from torch_xla._engine.lowering.recorder_ops import key_data
from torch_xla._engine.lowering.registry import LoweringRuleContext, Rule, ScalarOperand, default_dtype_scope
from torch_xla._engine.lowering.rules import matmul
from torch_xla._engine.lowering.rules.collectives import COLLECTIVES, opaque_to_compiler
from torch_xla._engine.lowering.rules.view_scatter import scatter_through_view
from torch_xla._engine.recorder import source_info
from torch_xla._engine.recorder.source_info import Origin

#: Ops that need their operands in torch's dtype even if the storage dtype is narrower: they reinterpret bits, XLA's
#: linear algebra libraries do not support 16-bit floats (reported only after the rule has run), or the function that
#: they call was traced with these dtypes.
_EXACT = re.compile(
    r"aten::(view(_copy)?\.dtype|_?linalg_|cholesky|triangular_solve|geqrf|orgqr|ormqr)|torch_xla::jax_call"
)
#: The nodes of a graph that its program may check, by number: the op, and the source location of the node.
CheckedOps = Mapping[int, tuple[str, Origin | None]]

_BITS_OR_CALLS = ("aten::view.dtype", "aten::view_copy.dtype", "torch_xla::jax_call")


def exact_dtype_scope(op: str) -> AbstractContextManager[None] | None:
    """Return the dtype scope of an op that needs torch's dtypes; None for other ops.

    If complex128 is stored as complex64 (TPUs), linear algebra does not use complex128: libtpu (of jax 0.10.2) aborts
    the process at a conversion to it.
    """
    if _EXACT.match(op) is None:
        return None
    return dtypes.exact_dtypes() if op.startswith(_BITS_OR_CALLS) else dtypes.exact_dtypes(torch.complex128)


class _GraphTracer:
    """One trace of a graph: the values so far with their torch dtypes, and the packed scalars.

    The graphs of other replicas may differ in ops that are not collectives; see ``opaque_to_compiler``.
    """

    def __init__(
        self,
        spec: GraphSpec,
        floats: jax.Array,
        ints: Sequence[jax.Array],
        leaves: tuple[jax.Array, ...],
        checked: bool = False,
    ) -> None:
        self.spec = spec
        self.checks = value_checks.CheckCollector() if checked else None
        self.floats, self.ints = cpu_kernel_call.unpack_scalars(floats), cpu_kernel_call.unpack_scalars(ints)
        self.exchanged: jax.Array | None = None  # an output of the last collective
        self.operands = [operands(node) for node in spec.nodes]  # the numbers of the values that each node reads
        self.is_located = hlo_metadata.is_enabled()
        # By value number. Inputs come first, then the nodes, which may be lowered in another order.
        self.values: list[Any] = [*leaves, *[None] * len(spec.nodes)]
        self.dtypes: list[Any] = [dtype for _, dtype in spec.leaves] + [None] * len(
            spec.nodes
        )  # a list for several outputs
        self.depths = [0] * len(self.values)  # number of ops since the last materialized value
        self.chained: Mapping[int, foreach_fusion.FusableOp] = {}
        self.chain: foreach_fusion.ForeachFusion | None = None

    def chain_nodes(self, members: Mapping[int, foreach_fusion.FusableOp]) -> None:
        """Fuse these foreach nodes, given by node number."""
        if members:
            self.chained = members
            self.chain = foreach_fusion.ForeachFusion(self.spec, self.values, self.argument, self._from_chain)

    def value(self, number: int) -> Any:
        """Return a value by number; evaluates fused ops that compute it."""
        if self.chain is not None and self.chain.pending(number):
            self.chain.evaluate()
        return self.values[number]

    def _from_chain(self, value: int, result: jax.Array) -> None:
        self._set(value, result, torch.float32, depth=1)

    def argument(self, arg: tuple[int, Any], exact: bool = False) -> Any:
        """Convert an argument for a rule; with ``exact``, tensors have torch's dtype, not the storage dtype."""
        tag, payload = arg
        if tag == ArgTag.CONSTANT:
            return payload
        if tag == ArgTag.VALUE:
            return _cast(self.value(payload), self.dtypes[payload]) if exact else self.value(payload)
        if tag in LIST_TAGS:
            return [self.argument(a, exact) for a in payload]
        if tag == ArgTag.FLOAT_INPUT:
            return ScalarOperand(self.floats[payload], float)
        if tag == ArgTag.INT_INPUT:
            return ScalarOperand(self.ints[payload], int)
        if tag == ArgTag.COMPLEX_INPUT:
            # In the storage precision: TPUs do not support complex128, not even conversions from it.
            part = np.float64 if dtypes.storage_dtype(torch.complex128) == torch.complex128 else np.float32
            real, imaginary = (self.floats[payload + i].astype(part) for i in (0, 1))
            return ScalarOperand(lax.complex(real, imaginary), complex)
        return dtypes.FROM_CODE[payload]

    def wait(self, value: int, others: Sequence[int]) -> None:
        """Make a value depend on the others: its readers run after them."""
        results = jax.tree.leaves([self.value(other) for other in others])
        after = [result for result in results if isinstance(result, jax.Array)]
        self.values[value] = cpu_kernel_call.materialize(self.value(value), after)

    def run(self, number: int) -> None:
        node, value = self.spec.nodes[number], len(self.spec.leaves) + number
        member = self.chained.get(number)
        if self.chain is not None and member is not None and self.chain.add(value, node, member):
            return
        if node.op == "torch_xla::getitem":
            (_, group), (_, place) = node.args
            if self.chain is not None and self.chain.contains(group):
                return
            parts = cpu_scheduling.list_item_operands(self.spec, node)
            depth = self.depths[group] if parts is None else self._deepest(parts) + 1
            self._set(value, self.values[group][place], self.dtypes[group][place], depth)
        elif node.op == "torch_xla::seed":
            # Not a user tensor: 64 bits, even if int64 is stored as int32.
            self._set(value, RULES[node.op].function(self.argument(node.args[0])), None)
        else:
            if self.is_located:
                results = hlo_metadata.with_metadata(node.op, node.origin, lambda: self._exchanged(node))
            else:
                results = self._exchanged(node)
            if self.checks is not None and node.schema_kind != SCATTER:
                self.checks.add(number, node.op, self.argument, node.args)
            declared = [dtype for _, dtype in node.outs]
            several = node.is_list or len(node.outs) > 1
            result, dtype = (results, declared) if several else (results[0], declared[0])
            self._set(value, result, dtype, self._depth(number))

    def _set(self, value: int, result: Any, dtype: Any, depth: int = 0) -> None:
        if depth >= cpu_scheduling.DEEPEST and isinstance(result, jax.Array):
            result, depth = cpu_kernel_call.materialize(result), 0
        self.values[value], self.dtypes[value], self.depths[value] = result, dtype, depth

    def _depth(self, number: int) -> int:
        node = self.spec.nodes[number]
        if cpu_scheduling.NOT_FUSED.match(node.op):
            return 1
        return self._deepest(self.operands[number]) + (node.op not in cpu_scheduling.VIEWS_OF_ONE)

    def _deepest(self, values: Sequence[int]) -> int:
        return max((self.depths[value] for value in values), default=0)

    def _exchanged(self, node: NodeSpec) -> list[Any]:
        if node.op not in COLLECTIVES:
            return self._results(node)
        values = self.argument(node.args[0])
        results = lower_node(node, [opaque_to_compiler(values, self.exchanged), *map(self.argument, node.args[1:])])
        self.exchanged = results[0]
        return results

    def _results(self, node: NodeSpec) -> list[Any]:
        if node.op in (manual_sharding.ENTER, manual_sharding.LEAVE):
            value, sharding, _, transposed = map(self.argument, node.args)
            change = manual_sharding.to_manual if node.op == manual_sharding.ENTER else manual_sharding.from_manual
            return [change(value, sharding, transposed)]
        if not dtypes.has_narrow_storage():
            return lower_node(node, [self.argument(a) for a in node.args])
        wide = exact_dtype_scope(node.op)
        if wide is None:
            try:
                return lower_node(node, [self.argument(a) for a in node.args])
            except LoweringError:
                pass  # not supported in 16 bits by XLA or jax (such as an FFT): retry with torch's dtypes
        with wide or dtypes.exact_dtypes():
            results = lower_node(node, [self.argument(a, exact=True) for a in node.args])
        return [_cast(value, dtype) for value, (_, dtype) in zip(results, node.outs, strict=True)]


def _cast(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_cast(v, d) for v, d in zip(value, dtype, strict=True)]
    return value if value is None or dtype is None else value.astype(dtypes.storage_numpy_dtype(dtype))


def lower_node(node: NodeSpec, args: list[Any]) -> list[Any]:
    """Lower one node by its rule or by torch's decomposition; return its outputs.

    Raises LoweringError, which names the op and, if source locations are captured, the line that recorded it.
    """
    try:
        if manual_sharding.has_manual_operand(args):
            return manual_sharding.map_per_device(lambda parts: _call(node, parts), args)
        return _call(node, args)
    except LoweringError as error:
        advice = "; set XLA_IR_DEBUG=1 to see the line that recorded it" if node.origin is None else ""
        error.args = (f"{error}{source_info.format_location(node.origin)}{advice}",)
        raise


def _call(node: NodeSpec, args: list[Any]) -> list[Any]:
    try:
        with default_dtype_scope(node.default_dtype):
            return _apply(node, args)
    except LoweringError:
        raise
    except Exception as error:
        shown = ", ".join(_format_operand(a) for a in args)
        raise LoweringError(f"{node.op}({shown}): could not lower to XLA: {error}") from error


def _apply(node: NodeSpec, args: list[Any]) -> list[Any]:
    context = LoweringRuleContext(node.op, node.outs)
    if node.schema_kind == SCATTER:
        base, *rest, value, out = args
        return apply_rule(Rule(node.op, scatter_through_view), [node.op, base, value, rest, out], node.outs, context)
    rule = RULES.get(node.op)
    if rule is not None and rule.random:
        *args, seed, draws = args
        context = LoweringRuleContext(node.op, node.outs, key_data(seed, draws))
    rule = rule or Rule(node.op, decompose.decomposition_rule(node.op))
    return apply_rule(rule, args, node.outs, context, convert=node.schema_kind == IN_PLACE)


def _format_operand(arg: Any) -> str:
    if isinstance(arg, jax.Array):
        return f"{np.dtype(arg.dtype)}{list(arg.shape)}"
    if isinstance(arg, list):
        return f"[{', '.join(_format_operand(a) for a in arg)}]"
    return arg.kind.__name__ if isinstance(arg, ScalarOperand) else repr(arg)


def checked_ops(spec: GraphSpec) -> CheckedOps:
    """Return the nodes of a graph whose values a program may check."""
    return {number: (node.op, node.origin) for number, node in enumerate(spec.nodes) if node.op in value_checks.CHECKS}


def graph_function(spec: GraphSpec, checked: bool = False) -> Callable[..., list[jax.Array]]:
    """Return the graph as a function ``f(floats, ints, *leaves) -> roots`` that jax can trace.

    ``checked``: if values of the graph can be out of range, the result of their checks is appended to the roots
    (lowering/value_checks.py).
    """

    def graph(floats: jax.Array, ints: Sequence[jax.Array], *leaves: jax.Array) -> list[jax.Array]:
        evaluation = _GraphTracer(spec, floats, ints, leaves, checked)
        order: Sequence[int] = range(len(spec.nodes))
        waits: Mapping[int, Any] = {}
        if cpu_kernel_call.cpu_kernels_allowed():
            order, members, waits = cpu_scheduling.make_schedule(spec)
            evaluation.chain_nodes(members)
        with matmul.precision_scope(spec.precision):
            for number in order:
                try:
                    for leaf, others in waits.get(number, ()):
                        evaluation.wait(leaf, others)
                    evaluation.run(number)
                except LoweringError as error:
                    error.node = number
                    raise
            results = [evaluation.value(root) for root in spec.roots]
            row = None if evaluation.checks is None else evaluation.checks.result()
        found = [
            _reject_manual_result(result, root - len(spec.leaves))
            for result, root in zip(results, spec.roots, strict=True)
        ]
        return found if row is None else [*found, row]

    return graph


def _reject_manual_result(value: Any, node: int) -> Any:
    if not isinstance(value, manual_sharding.ManualValue):
        return value
    error = LoweringError(
        f"a tensor of shape {list(value.stacked.shape[1:])} is still manually sharded at the end of the graph: pass "
        "it to disable_manual_sharding, and `del` it before the step barrier if it is no longer needed; also pass "
        "outside tensors that require gradients through enable_manual_sharding"
    )
    error.node = node
    raise error
