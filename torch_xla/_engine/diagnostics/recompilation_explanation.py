"""Explain a recompilation: what changed between two graphs, where, and what to do."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_xla._engine.base import messages, sharding_ids
from torch_xla._engine.diagnostics import recompilation_advice
from torch_xla._engine.diagnostics.buffer_provenance import Provenance
from torch_xla._engine.diagnostics.recompilation_advice import Advice
from torch_xla._engine.graph import graph_diff, graph_summary
from torch_xla._engine.graph.graph_diff import GraphDiff, LayoutChange, LeafChange
from torch_xla._engine.lowering.rules.matmul import Precision


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a graph was recompiled.

    Attributes:
      kind: setting, inputs, derived (inputs computed by another program), layout, argument, branch (a value was read),
        ops, limit, wiring, results, nothing (the program was evicted from the cache) or unknown.
      text: the message for the user, not wrapped: a headline, its cause, a fix and the page that explains it.
      line: the user line that is closest to the cause.
      subject: identifies the cause; explanations with equal subjects have the same cause.
      advice: what to do, the fix in ``text``.
      details: the changed values, by kind.
    """

    kind: str
    text: str
    line: str
    subject: tuple[Any, ...]
    advice: str
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        """Return ``text`` for a terminal: wrapped, with short paths."""
        return messages.wrap(self.text)


@dataclass(frozen=True, slots=True)
class RecompilationContext:
    """The context of a compilation: line, sync reason, values read in the step, provenance of the graph inputs.

    ``seconds`` is the time of the compilation; 0: unknown, or the graph was not compiled.
    """

    line: str
    cause: str
    reads: tuple[str, ...]
    provenances: tuple[Provenance, ...]
    ops: int
    seconds: float = 0.0


def explain_difference(difference: GraphDiff, context: RecompilationContext, *, unstable: bool = False) -> Explanation:
    """Return the explanation of the difference between a graph and its closest match.

    Args:
      difference: the difference.
      context: the compilation, or the run of an interpreted graph.
      unstable: whether new graphs of the line are interpreted from now on; otherwise the graph was compiled.
    """
    kind, what, line, subject, advice, details = _BUILD[difference.kind](difference, context)
    cause = "; ".join(part for part in (what, advice.why) if part)
    fix = advice.fix
    if unstable:
        headline, page = _unstable_headline(kind, details, context), _UNSTABLE_PAGES.get(kind, "interpreted-graphs")
        fix += "; TORCH_XLA_COMPILE_POLICY=compile compiles every graph instead"
    else:
        size = f"{context.ops} op{'s'[: context.ops != 1]}"
        took = f", {context.seconds:.2g} s" if context.seconds else ""
        headline, page = f"recompiled the graph at {context.line} ({size}{took})", "recompilation"
    return Explanation(kind, messages.compose(headline, cause, fix, page), line, (kind, *subject), fix, details)


def add_library_note(explanation: Explanation, library: str) -> Explanation:
    """Return the explanation; its text also says that it is the only one of its kind for an installed library."""
    note = f"; other graphs of {library} that change like this do not warn (torch_xla.debug.report() lists them)"
    headline, cause, rest = explanation.text.split("\n", 2)
    return replace(explanation, text=f"{headline}\n{cause}{note}\n{rest}")


_UNSTABLE_PAGES = {"inputs": "changing-shapes", "derived": "changing-shapes"}
_UNSTABLE = {
    "argument": "a constant argument changes",
    "ops": "the ops change",
    "branch": "the ops change",
    "limit": "the ops change",
}


def _unstable_headline(kind: str, details: dict[str, Any], context: RecompilationContext) -> str:
    what, values = _UNSTABLE.get(kind, "the graph changes"), ""
    if kind in _UNSTABLE_PAGES:
        _, old, new = details["inputs"][0]
        what, values = "an input shape changes", f" ({old} -> {new})"
    return f"{what} on every call at {context.line}{values}; new graphs of this line run op by op from now on"


_Parts = tuple[str, str, str, tuple[Any, ...], Advice, dict[str, Any]]


def format_leaf(leaf: graph_summary.Leaf) -> str:
    """Format a shape and dtype: ``float32[32, 784]``."""
    shape, dtype = leaf
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _explain_inputs(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    def provenance(change: LeafChange) -> Provenance:
        return context.provenances[change.index]

    # The result of a program with a changed input shape changes its shape, too: the uploaded tensor is the cause.
    changes = [c for c in difference.inputs if provenance(c).kind in _SOURCES] or list(difference.inputs)
    parts = [_input(change, provenance(change)) for change in changes[:3]]
    if len(changes) > 3:
        parts.append(f"{len(changes) - 3} more inputs differ")
    places = tuple(sorted({provenance(c).line for c in changes if provenance(c).line}))
    subject: tuple[Any, ...] = places or (context.line, *(c.index for c in changes))
    details = {"inputs": [(c.index, format_leaf(c.old), format_leaf(c.new)) for c in changes]}
    kind = "inputs" if provenance(changes[0]).kind in _SOURCES else "derived"
    from_cpu = any(provenance(c).kind == "fallback" for c in changes)
    todo = recompilation_advice.VALUES if from_cpu else recompilation_advice.shape_advice(changes)
    return kind, "; ".join(parts), (places or (context.line,))[0], subject, todo, details


def _input(change: LeafChange, origin: Provenance) -> str:
    what = [name for name, old, new in zip(("shape", "dtype"), change.old, change.new, strict=True) if old != new]
    text = f"the {' and '.join(what)} of input {change.index} changed from "
    return text + f"{format_leaf(change.old)} to {format_leaf(change.new)}" + _origin(change, origin)


def _origin(change: LeafChange | LayoutChange, origin: Provenance) -> str:
    """Format where an input was created and first used, in parentheses."""
    where = [f"{_PROVENANCE_TEXT[origin.kind]} at {origin.line}"] if origin.line else []
    if change.user is not None:
        where.append(f"first used by {_op_name(change.user.op)}{_location_suffix(change.user)}")
    return f" ({', '.join(where)})" if where else ""


_SOURCES = ("upload", "fallback")
_PROVENANCE_TEXT = {
    "upload": "uploaded",
    "fallback": "returned by an op that ran on the CPU",
    "result": "computed",
    "transfer": "transferred",
    "unknown": "created",
}


def _location_suffix(op: graph_summary.OpSummary) -> str:
    return f" at {op.line}" if op.line else ""


def _explain_argument(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    change = difference.argument
    assert change is not None
    line = change.op.line or context.line
    name = f"the constant argument `{change.name}`" if change.name else "a constant argument"
    what = f"{name} of {_op_name(change.op.op)}{_location_suffix(change.op)} changed from "
    what += f"{_value(change.old)} to {_value(change.new)}"
    details = {"op": change.op.op, "argument": change.name, "old": change.old, "new": change.new}
    # Without a source line, several such ops or their gradients cannot be distinguished: they count as one cause.
    subject = (change.op.line, change.op.op, change.name)
    return "argument", what, line, subject, recompilation_advice.argument_advice(change), details


def _op_name(op: str) -> str:
    """Return the name of an op for the user: without the namespace of this package's own ops."""
    return op.removeprefix("torch_xla::")


def _value(value: Any) -> str:
    if value is None:
        return "omitted"
    return f"a program input ({value})" if isinstance(value, graph_summary.ScalarInput) else repr(value)


def _explain_ops(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    added, removed = _changed_ops(difference.added, difference.removed)
    parts = [f"{verb} {_names(ops)}" for verb, ops in (("added", added), ("removed", removed)) if ops]
    changed = "; ".join(parts) or "the same ops run in another order"
    what = f"compared with the closest known graph, {changed}"
    names = tuple(sorted({op.op for op in (*added, *removed)}))
    details = {"added": [op.op for op in added], "removed": [op.op for op in removed]}
    if context.cause.startswith("the graph reached"):
        return (
            "limit",
            f"{what} ({context.cause})",
            context.line,
            (context.line,),
            recompilation_advice.CUT,
            details,
        )
    # The read that runs this graph comes after its ops and cannot have decided what was recorded.
    deciding = _branching_lines([line for line in context.reads if line != context.line])
    if deciding:
        what += f"; earlier in this step a value was read at {' and at '.join(deciding)}"
        return "branch", what, deciding[0], (*deciding,), recompilation_advice.WHERE, details | {"reads": deciding}
    line = next((op.line for op in (*difference.added, *difference.removed) if op.line), context.line)
    return "ops", what, line, (line, *names), recompilation_advice.BRANCH, details


def _changed_ops(
    added: Sequence[graph_summary.OpSummary], removed: Sequence[graph_summary.OpSummary]
) -> tuple[list[graph_summary.OpSummary], list[graph_summary.OpSummary]]:
    """Return the added and the removed ops without those that only moved, and without result selections."""
    before, after = Counter(op.name for op in removed), Counter(op.name for op in added)
    moved = before & after
    return _remove_moved_ops(added, moved), _remove_moved_ops(removed, moved)


def _remove_moved_ops(ops: Sequence[graph_summary.OpSummary], moved: Counter[str]) -> list[graph_summary.OpSummary]:
    rest, found = Counter(moved), []
    for op in ops:
        if rest[op.name]:
            rest[op.name] -= 1
        elif op.op != graph_diff.GETITEM:
            found.append(op)
    return found


def _names(ops: Sequence[graph_summary.OpSummary]) -> str:
    counted = Counter(_op_name(op.name) for op in ops)
    parts = [name if n == 1 else f"{n} × {name}" for name, n in counted.most_common(4)]
    if len(counted) > 4:
        parts.append(f"{len(counted) - 4} other operators")
    first = next((op.line for op in ops if op.line), None)
    return ", ".join(parts) + (f" (first at {first})" if first else "")


_BRANCHING = re.compile(r"\b(if|elif|while|assert|for|and|or|not)\b|[<>]=?|[=!]=")


def _branching_lines(reads: Sequence[str]) -> list[str]:
    """Return up to three of the lines where values were read: those with control flow, or all if none has any."""

    def source(line: str) -> str:
        path, _, number = line.rpartition(":")
        return linecache.getline(path, int(number)) if number.isdigit() else ""

    found = [line for line in reads if _BRANCHING.search(source(line))]
    return (found or list(reads))[:3]


def _explain_wiring(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    return "wiring", "", context.line, (context.line,), recompilation_advice.WIRE, {}


def _explain_results(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    more = ", ".join(f"{n:+} {name}" for name, n in difference.counts.items() if n)
    return (
        "results",
        f"the results or donated inputs changed ({more})" if more else "the results changed",
        context.line,
        (context.line,),
        recompilation_advice.KEEP,
        dict(difference.counts),
    )


def _explain_evicted(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    what = "it was compiled before, but its program was evicted from the cache"
    return "nothing", what, context.line, (context.line,), recompilation_advice.EVICTED, {}


def _explain_unknown(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    what = "the graph is new, but no compared property differs from a known graph"
    return "unknown", what, context.line, (context.line,), recompilation_advice.REPORT, {}


def _explain_setting(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    change = difference.setting
    assert change is not None
    line = context.line if change.op is None else change.op.line or context.line
    if change.name == "place":
        what = f"the placement changed from {change.old} to {change.new}"
    elif change.name == "precision":
        what = f"the float32 matmul precision changed from {_precision(change.old)} to {_precision(change.new)}"
    else:
        old, new = (str(dtype).removeprefix("torch.") for dtype in (change.old, change.new))
        what = f"torch's default dtype changed from {old} to {new} for {_op_name(change.op.op) if change.op else ''}"
        what += f"{_location_suffix(change.op) if change.op else ''}"
    details = {"setting": change.name, "old": change.old, "new": change.new}
    return "setting", what, line, (change.name,), recompilation_advice.ONCE[change.name], details


def _precision(value: Precision) -> str:
    return f"{value.products.name} (matmuls), {value.convolutions.name} (convolutions)"


def _explain_layout(difference: GraphDiff, context: RecompilationContext) -> _Parts:
    parts = [_format_layout_change(change, context.provenances[change.index]) for change in difference.layouts[:3]]
    if len(difference.layouts) > 3:
        parts.append(f"{len(difference.layouts) - 3} more inputs have a different sharding")
    details = {"layouts": [(c.index, _format_sharding(c.old), _format_sharding(c.new)) for c in difference.layouts]}
    subject = (context.line, *(change.index for change in difference.layouts))
    return "layout", "; ".join(parts), context.line, subject, recompilation_advice.LAYOUT, details


def _format_layout_change(change: LayoutChange, origin: Provenance) -> str:
    text = f"the sharding of input {change.index} changed from {_format_sharding(change.old)} to "
    return text + _format_sharding(change.new) + _origin(change, origin)


def _format_sharding(number: int) -> str:
    sharding = sharding_ids.sharding_from_id(number)
    return "a single device" if sharding is None else str(getattr(sharding, "spec", sharding))


_BUILD: dict[str, Callable[[GraphDiff, RecompilationContext], _Parts]] = {
    "setting": _explain_setting,
    "inputs": _explain_inputs,
    "ops": _explain_ops,
    "layout": _explain_layout,
    "argument": _explain_argument,
    "wiring": _explain_wiring,
    "results": _explain_results,
    "nothing": _explain_evicted,
    "unknown": _explain_unknown,
}
