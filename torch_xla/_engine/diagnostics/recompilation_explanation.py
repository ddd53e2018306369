"""A Difference in words: one paragraph that says what changed, where, and what to do about it."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine.base import sharding_ids
from torch_xla._engine.diagnostics import recompilation_advice
from torch_xla._engine.diagnostics.buffer_provenance import Provenance
from torch_xla._engine.graph import graph_summary
from torch_xla._engine.graph.graph_diff import GraphDiff, LayoutChange, LeafChange
from torch_xla._engine.lowering.rules.matmul import Precision


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a graph was compiled again.

    kind: setting, inputs, derived (inputs that were computed), layout, argument, branch (a value was read), ops, limit,
    wiring, results; nothing, if its program has left the cache; or unknown. line: where it comes from, as near as is
    known. subject: what makes two explanations one cause.
    """

    kind: str
    text: str
    line: str
    subject: tuple[Any, ...]
    advice: str
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RecompilationContext:
    """What is known besides the graphs: who asked, which values were read in this step, where inputs come from."""

    line: str
    cause: str
    reads: tuple[str, ...]
    provenances: tuple[Provenance, ...]
    ops: int


def explain_difference(
    difference: GraphDiff, situation: RecompilationContext, event: str = "was compiled again"
) -> Explanation:
    """The paragraph for a difference between a graph and the nearest known one; ``event``: what happened to it."""
    kind, what, line, subject, todo, details = _BUILD[difference.kind](difference, situation)
    text = f"the graph of {situation.ops} ops that runs at {situation.line} {event}:"
    text = " ".join(part for part in (text, what, todo) if part)
    return Explanation(kind, text, line, (kind, *subject), todo, details)


_Parts = tuple[str, str, str, tuple[Any, ...], str, dict[str, Any]]


def format_leaf(leaf: graph_summary.Leaf) -> str:
    """A shape and dtype: ``float32[32, 784]``."""
    shape, dtype = leaf
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _explain_inputs(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    def maker(change: LeafChange) -> Provenance:
        return situation.provenances[change.index]

    # What a program made out of a tensor of another shape has another shape, too: the tensor itself is the cause.
    changes = [c for c in difference.inputs if maker(c).kind in _ROOTS] or list(difference.inputs)
    parts = [_input(change, maker(change)) for change in changes[:3]]
    if len(changes) > 3:
        parts.append(f"{len(changes) - 3} more inputs differ")
    places = tuple(sorted({maker(c).line for c in changes if maker(c).line}))
    subject: tuple[Any, ...] = places or (situation.line, *(c.index for c in changes))
    details = {"inputs": [(c.index, format_leaf(c.old), format_leaf(c.new)) for c in changes]}
    kind = "inputs" if maker(changes[0]).kind in _ROOTS else "derived"
    from_cpu = any(maker(c).kind == "fallback" for c in changes)
    todo = recompilation_advice.VALUES if from_cpu else recompilation_advice.shape_advice(changes)
    return kind, "; ".join(parts) + ".", (places or (situation.line,))[0], subject, todo, details


def _input(change: LeafChange, maker: Provenance) -> str:
    text = f"its input {change.index} was {format_leaf(change.old)} and is {format_leaf(change.new)}"
    return text + _origin(change, maker)


def _origin(change: LeafChange | LayoutChange, maker: Provenance) -> str:
    """Where an input comes from and goes to, in parentheses."""
    where = [f"{_MADE[maker.kind]} at {maker.line}"] if maker.line else []
    if change.user is not None:
        where.append(f"first used by {change.user.op}{_location_suffix(change.user)}")
    return f" ({', '.join(where)})" if where else ""


_ROOTS = ("upload", "fallback")
_MADE = {
    "upload": "sent to the device",
    "fallback": "back from an op that ran on the CPU",
    "result": "computed",
    "transfer": "moved",
    "unknown": "made",
}


def _location_suffix(op: graph_summary.OpSummary) -> str:
    return f" at {op.line}" if op.line else ""


def _explain_argument(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    change = difference.argument
    assert change is not None
    line = change.op.line or situation.line
    what = f"argument `{change.name}` of {change.op.op}{_location_suffix(change.op)} was {_value(change.old)} and is "
    what += f"{_value(change.new)}."
    details = {"op": change.op.op, "argument": change.name, "old": change.old, "new": change.new}
    # Without the op's own line it may be one of several such ops, or its gradient: they count as one cause.
    subject = (change.op.line, change.op.op, change.name)
    return "argument", what, line, subject, recompilation_advice.argument_advice(change), details


def _value(value: Any) -> str:
    if value is None:
        return "not given"
    return f"any {value} (an input)" if isinstance(value, graph_summary.ScalarInput) else repr(value)


def _explain_ops(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    parts = []
    added, removed = _without_getitem(difference.added), _without_getitem(difference.removed)
    if added:
        parts.append(f"it has {_names(added)} that the nearest known graph has not")
    if removed:
        parts.append(f"it lacks {_names(removed)} that the nearest known graph has")
    what = "; ".join(parts)
    names = tuple(sorted({op.op for op in (*added, *removed)}))
    details = {"added": [op.op for op in added], "removed": [op.op for op in removed]}
    if situation.cause.startswith("the graph reached"):
        return (
            "limit",
            f"{what} ({situation.cause}).",
            situation.line,
            (situation.line,),
            recompilation_advice.CUT,
            details,
        )
    # A read that runs the graph itself came after its ops.
    deciding = _branching_lines([line for line in situation.reads if line != situation.line])
    if deciding:
        what += f". Earlier in this step a value was read at {' and at '.join(deciding)}."
        return "branch", what, deciding[0], (*deciding,), recompilation_advice.WHERE, details | {"reads": deciding}
    line = next((op.line for op in (*difference.added, *difference.removed) if op.line), situation.line)
    return "ops", f"{what}.", line, (line, *names), recompilation_advice.BRANCH, details


def _without_getitem(ops: Sequence[graph_summary.OpSummary]) -> Sequence[graph_summary.OpSummary]:
    """Without the results of operations with several, where there is anything else."""
    return [op for op in ops if op.op != "torch_xla::getitem"] or ops


def _names(ops: Sequence[graph_summary.OpSummary]) -> str:
    counted = Counter(op.name for op in ops)
    parts = [name if n == 1 else f"{n} × {name}" for name, n in counted.most_common(4)]
    if len(counted) > 4:
        parts.append(f"{len(counted) - 4} other kinds of ops")
    first = next((op.line for op in ops if op.line), None)
    return ", ".join(parts) + (f" (the first at {first})" if first else "")


_DECIDES = re.compile(r"\b(if|elif|while|assert|for|and|or|not)\b|[<>]=?|[=!]=")


def _branching_lines(reads: Sequence[str]) -> list[str]:
    """The lines, of those where values were read, that look as if they decide something; all if none does."""

    def source(line: str) -> str:
        path, _, number = line.rpartition(":")
        return linecache.getline(path, int(number)) if number.isdigit() else ""

    found = [line for line in reads if _DECIDES.search(source(line))]
    return (found or list(reads))[:3]


def _explain_wiring(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    return "wiring", "", situation.line, (situation.line,), recompilation_advice.WIRE, {}


def _results(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    more = ", ".join(f"{n:+} {name}" for name, n in difference.counts.items() if n)
    return (
        "results",
        f"({more})." if more else "",
        situation.line,
        (situation.line,),
        recompilation_advice.KEEP,
        dict(difference.counts),
    )


def _explain_evicted(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    what = "it was compiled before, and its program has left the cache (XLA_COMPILATION_CACHE_SIZE)."
    return "nothing", what, situation.line, (situation.line,), "", {}


def _explain_unknown(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    what = "it is no known graph, but nothing that is compared differs from one: please report this to torch_xla."
    return "unknown", what, situation.line, (situation.line,), "", {}


def _explain_setting(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    change = difference.setting
    assert change is not None
    line = situation.line if change.op is None else change.op.line or situation.line
    if change.name == "place":
        what = f"it was compiled for {change.old} and is for {change.new}."
    elif change.name == "precision":
        what = f"matrix products of float32 were {_precision(change.old)}, and are {_precision(change.new)}."
    else:
        old, new = (str(dtype).removeprefix("torch.") for dtype in (change.old, change.new))
        what = f"torch's default dtype was {old} and is {new} where {change.op.op if change.op else ''} was recorded"
        what += f"{_location_suffix(change.op) if change.op else ''}."
    details = {"setting": change.name, "old": change.old, "new": change.new}
    return "setting", what, line, (change.name,), recompilation_advice.ONCE[change.name], details


def _precision(value: Precision) -> str:
    return f"{value.products.name} (products), {value.convolutions.name} (convolutions)"


def _explain_layout(difference: GraphDiff, situation: RecompilationContext) -> _Parts:
    parts = [_format_layout_change(change, situation.provenances[change.index]) for change in difference.layouts[:3]]
    if len(difference.layouts) > 3:
        parts.append(f"{len(difference.layouts) - 3} more inputs lie in another way")
    details = {"layouts": [(c.index, _format_sharding(c.old), _format_sharding(c.new)) for c in difference.layouts]}
    subject = (situation.line, *(change.index for change in difference.layouts))
    return "layout", "; ".join(parts) + ".", situation.line, subject, recompilation_advice.LAYOUT, details


def _format_layout_change(change: LayoutChange, maker: Provenance) -> str:
    text = f"its input {change.index} lay {_format_sharding(change.old)} and lies {_format_sharding(change.new)}"
    return text + _origin(change, maker)


def _format_sharding(number: int) -> str:
    sharding = sharding_ids.sharding_from_id(number)
    return "on one device" if sharding is None else f"as {getattr(sharding, 'spec', sharding)}"


_BUILD: dict[str, Callable[[GraphDiff, RecompilationContext], _Parts]] = {
    "setting": _explain_setting,
    "inputs": _explain_inputs,
    "ops": _explain_ops,
    "layout": _explain_layout,
    "argument": _explain_argument,
    "wiring": _explain_wiring,
    "results": _results,
    "nothing": _explain_evicted,
    "unknown": _explain_unknown,
}
