"""A Difference in words: one paragraph that says what changed, where, and what to do about it."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine.base import shardings
from torch_xla._engine.diagnostics import advice
from torch_xla._engine.diagnostics.provenance import Provenance
from torch_xla._engine.graph import summary
from torch_xla._engine.graph.difference import Difference, LayoutChange, LeafChange
from torch_xla._engine.lowering.matmul import Precision


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
class Situation:
    """What is known besides the graphs: who asked, which values were read in this step, where inputs come from."""

    line: str
    cause: str
    reads: tuple[str, ...]
    provenances: tuple[Provenance, ...]
    ops: int


def explain(difference: Difference, situation: Situation, event: str = "was compiled again") -> Explanation:
    """The paragraph for a difference between a graph and the nearest known one; ``event``: what happened to it."""
    kind, what, line, subject, todo, details = _BUILD[difference.kind](difference, situation)
    text = f"the graph of {situation.ops} ops that runs at {situation.line} {event}:"
    text = " ".join(part for part in (text, what, todo) if part)
    return Explanation(kind, text, line, (kind, *subject), todo, details)


_Parts = tuple[str, str, str, tuple[Any, ...], str, dict[str, Any]]


def show(leaf: summary.Leaf) -> str:
    """A shape and dtype: ``float32[32, 784]``."""
    shape, dtype = leaf
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _inputs(difference: Difference, situation: Situation) -> _Parts:
    def maker(change: LeafChange) -> Provenance:
        return situation.provenances[change.index]

    # What a program made out of a tensor of another shape has another shape, too: the tensor itself is the cause.
    changes = [c for c in difference.inputs if maker(c).kind in _ROOTS] or list(difference.inputs)
    parts = [_input(change, maker(change)) for change in changes[:3]]
    if len(changes) > 3:
        parts.append(f"{len(changes) - 3} more inputs differ")
    places = tuple(sorted({maker(c).line for c in changes if maker(c).line}))
    subject: tuple[Any, ...] = places or (situation.line, *(c.index for c in changes))
    details = {"inputs": [(c.index, show(c.old), show(c.new)) for c in changes]}
    kind = "inputs" if maker(changes[0]).kind in _ROOTS else "derived"
    from_cpu = any(maker(c).kind == "fallback" for c in changes)
    todo = advice.VALUES if from_cpu else advice.of_shapes(changes)
    return kind, "; ".join(parts) + ".", (places or (situation.line,))[0], subject, todo, details


def _input(change: LeafChange, maker: Provenance) -> str:
    text = f"its input {change.index} was {show(change.old)} and is {show(change.new)}"
    return text + _origin(change, maker)


def _origin(change: LeafChange | LayoutChange, maker: Provenance) -> str:
    """Where an input comes from and goes to, in parentheses."""
    where = [f"{_MADE[maker.kind]} at {maker.line}"] if maker.line else []
    if change.user is not None:
        where.append(f"first used by {change.user.op}{_at(change.user)}")
    return f" ({', '.join(where)})" if where else ""


_ROOTS = ("upload", "fallback")
_MADE = {
    "upload": "sent to the device",
    "fallback": "back from an op that ran on the CPU",
    "result": "computed",
    "transfer": "moved",
    "unknown": "made",
}


def _at(op: summary.OpSummary) -> str:
    return f" at {op.line}" if op.line else ""


def _argument(difference: Difference, situation: Situation) -> _Parts:
    change = difference.argument
    assert change is not None
    line = change.op.line or situation.line
    what = f"argument `{change.name}` of {change.op.op}{_at(change.op)} was {_value(change.old)} and is "
    what += f"{_value(change.new)}."
    details = {"op": change.op.op, "argument": change.name, "old": change.old, "new": change.new}
    # Without the op's own line it may be one of several such ops, or its gradient: they count as one cause.
    subject = (change.op.line, change.op.op, change.name)
    return "argument", what, line, subject, advice.of_argument(change), details


def _value(value: Any) -> str:
    if value is None:
        return "not given"
    return f"any {value} (an input)" if isinstance(value, summary.Operand) else repr(value)


def _ops(difference: Difference, situation: Situation) -> _Parts:
    parts = []
    added, removed = _recorded(difference.added), _recorded(difference.removed)
    if added:
        parts.append(f"it has {_names(added)} that the nearest known graph has not")
    if removed:
        parts.append(f"it lacks {_names(removed)} that the nearest known graph has")
    what = "; ".join(parts)
    names = tuple(sorted({op.op for op in (*added, *removed)}))
    details = {"added": [op.op for op in added], "removed": [op.op for op in removed]}
    if situation.cause.startswith("the graph reached"):
        return "limit", f"{what} ({situation.cause}).", situation.line, (situation.line,), advice.CUT, details
    # A read that runs the graph itself came after its ops.
    deciding = _deciding([line for line in situation.reads if line != situation.line])
    if deciding:
        what += f". Earlier in this step a value was read at {' and at '.join(deciding)}."
        return "branch", what, deciding[0], (*deciding,), advice.WHERE, details | {"reads": deciding}
    line = next((op.line for op in (*difference.added, *difference.removed) if op.line), situation.line)
    return "ops", f"{what}.", line, (line, *names), advice.BRANCH, details


def _recorded(ops: Sequence[summary.OpSummary]) -> Sequence[summary.OpSummary]:
    """Without the results of operations with several, where there is anything else."""
    return [op for op in ops if op.op != "torch_xla::getitem"] or ops


def _names(ops: Sequence[summary.OpSummary]) -> str:
    counted = Counter(op.name for op in ops)
    parts = [name if n == 1 else f"{n} × {name}" for name, n in counted.most_common(4)]
    if len(counted) > 4:
        parts.append(f"{len(counted) - 4} other kinds of ops")
    first = next((op.line for op in ops if op.line), None)
    return ", ".join(parts) + (f" (the first at {first})" if first else "")


_DECIDES = re.compile(r"\b(if|elif|while|assert|for|and|or|not)\b|[<>]=?|[=!]=")


def _deciding(reads: Sequence[str]) -> list[str]:
    """The lines, of those where values were read, that look as if they decide something; all if none does."""

    def source(line: str) -> str:
        path, _, number = line.rpartition(":")
        return linecache.getline(path, int(number)) if number.isdigit() else ""

    found = [line for line in reads if _DECIDES.search(source(line))]
    return (found or list(reads))[:3]


def _wiring(difference: Difference, situation: Situation) -> _Parts:
    return "wiring", "", situation.line, (situation.line,), advice.WIRE, {}


def _results(difference: Difference, situation: Situation) -> _Parts:
    more = ", ".join(f"{n:+} {name}" for name, n in difference.counts.items() if n)
    return (
        "results",
        f"({more})." if more else "",
        situation.line,
        (situation.line,),
        advice.KEEP,
        dict(difference.counts),
    )


def _nothing(difference: Difference, situation: Situation) -> _Parts:
    what = "it was compiled before, and its program has left the cache (XLA_COMPILATION_CACHE_SIZE)."
    return "nothing", what, situation.line, (situation.line,), "", {}


def _unknown(difference: Difference, situation: Situation) -> _Parts:
    what = "it is no known graph, but nothing that is compared differs from one: please report this to torch_xla."
    return "unknown", what, situation.line, (situation.line,), "", {}


def _setting(difference: Difference, situation: Situation) -> _Parts:
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
        what += f"{_at(change.op) if change.op else ''}."
    details = {"setting": change.name, "old": change.old, "new": change.new}
    return "setting", what, line, (change.name,), advice.ONCE[change.name], details


def _precision(value: Precision) -> str:
    return f"{value.products.name} (products), {value.convolutions.name} (convolutions)"


def _layout(difference: Difference, situation: Situation) -> _Parts:
    parts = [_laid_out(change, situation.provenances[change.index]) for change in difference.layouts[:3]]
    if len(difference.layouts) > 3:
        parts.append(f"{len(difference.layouts) - 3} more inputs lie in another way")
    details = {"layouts": [(c.index, _lies(c.old), _lies(c.new)) for c in difference.layouts]}
    subject = (situation.line, *(change.index for change in difference.layouts))
    return "layout", "; ".join(parts) + ".", situation.line, subject, advice.LAYOUT, details


def _laid_out(change: LayoutChange, maker: Provenance) -> str:
    text = f"its input {change.index} lay {_lies(change.old)} and lies {_lies(change.new)}"
    return text + _origin(change, maker)


def _lies(number: int) -> str:
    sharding = shardings.of(number)
    return "on one device" if sharding is None else f"as {getattr(sharding, 'spec', sharding)}"


_BUILD: dict[str, Callable[[Difference, Situation], _Parts]] = {
    "setting": _setting,
    "inputs": _inputs,
    "ops": _ops,
    "layout": _layout,
    "argument": _argument,
    "wiring": _wiring,
    "results": _results,
    "nothing": _nothing,
    "unknown": _unknown,
}
