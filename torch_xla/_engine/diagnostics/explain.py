"""A Difference in words: one paragraph that says what changed, where, and what to do about it."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine.diagnostics.provenance import Provenance
from torch_xla._engine.graph import summary
from torch_xla._engine.graph.difference import ArgumentChange, Difference, LeafChange

PAD = (
    "Every shape is a program of its own: give all batches one size with DataLoader(..., drop_last=True), or pad the "
    "last one and mask its loss."
)
BUCKET = (
    "Every shape is a program of its own: pad to one size, or to a few (buckets), before the tensor goes to the device."
)
VALUES = (
    "The shape depends on values, which only the CPU can know: use a mask and torch.where, or torch.topk with a fixed "
    "size, so that every shape is known beforehand."
)
CAST = "Give the tensor one dtype before it goes to the device."
TENSOR = (
    "It is a constant of the program, so every value is a program of its own: keep it as a tensor, "
    "`torch.tensor(value, device=...)`, or choose among a few values."
)
FIX = "It is a constant of the program, so every value is a program of its own: keep it the same, or among a few."
SPECIAL = (
    "0, 1 and -1 are constants of the program, other numbers are inputs of it; XLA_NO_SPECIAL_SCALARS=1 makes inputs "
    "of all, or keep the number as a tensor."
)
TYPE = "Give it a number of the same type in every step."
WHERE = (
    "A value that reaches Python and decides what is recorded makes a program for each way: keep it as a tensor and "
    "choose with torch.where, or move the decision out of the step, after torch_xla.sync()."
)
BRANCH = (
    "The Python code took another way (an if, a loop of another length): record the same ops in every step, choose "
    "with torch.where, or move what runs only sometimes out of the step, after torch_xla.sync()."
)
CUT = "The graph is cut wherever it has grown to that size: end each step with torch_xla.sync()."
KEEP = (
    "The same ops, but other results are wanted: a tensor is kept now, or is no longer kept, when the step ends. "
    "Keep the same ones in every step, detached."
)
WIRE = "The same ops with other inputs: a tensor stands in another place, or one is now used where there were two."


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a graph was compiled again.

    kind: inputs, argument, branch (a value was read), ops, limit, wiring, results or nothing. line: where it comes
    from, as near as is known. subject: what makes two explanations one cause.
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
    build = {"inputs": _inputs, "argument": _argument, "ops": _ops}.get(difference.kind, _other)
    kind, what, line, subject, advice, details = build(difference, situation)
    text = f"the graph of {situation.ops} ops that runs at {situation.line} {event}:"
    text = " ".join(part for part in (text, what, advice) if part)
    return Explanation(kind, text, line, (kind, *subject), advice, details)


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
    advice = VALUES if any(maker(c).kind == "fallback" for c in changes) else _shape_advice(changes)
    return kind, "; ".join(parts) + ".", (places or (situation.line,))[0], subject, advice, details


def _input(change: LeafChange, maker: Provenance) -> str:
    text = f"its input {change.index} was {show(change.old)} and is {show(change.new)}"
    where = [f"{_MADE[maker.kind]} at {maker.line}"] if maker.line else []
    if change.user is not None:
        where.append(f"first used by {change.user.op}{_at(change.user)}")
    return f"{text} ({', '.join(where)})" if where else text


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


def _shape_advice(changes: Sequence[LeafChange]) -> str:
    if all(c.old[0] == c.new[0] for c in changes):
        return CAST
    only_first = all(c.old[0][1:] == c.new[0][1:] for c in changes)
    return PAD if only_first else BUCKET


def _argument(difference: Difference, situation: Situation) -> _Parts:
    change = difference.argument
    assert change is not None
    line = change.op.line or situation.line
    what = f"argument `{change.name}` of {change.op.op}{_at(change.op)} was {_value(change.old)} and is "
    what += f"{_value(change.new)}."
    details = {"op": change.op.op, "argument": change.name, "old": change.old, "new": change.new}
    # Without the op's own line it may be one of several such ops, or its gradient: they count as one cause.
    subject = (change.op.line, change.op.op, change.name)
    return "argument", what, line, subject, _argument_advice(change), details


def _value(value: Any) -> str:
    if value is None:
        return "not given"
    return f"any {value} (an input)" if isinstance(value, summary.Operand) else repr(value)


def _argument_advice(change: ArgumentChange) -> str:
    operands = [isinstance(value, summary.Operand) for value in (change.old, change.new)]
    if any(operands):
        return TYPE if all(operands) else SPECIAL
    numbers = all(isinstance(v, (int, float, complex)) and not isinstance(v, bool) for v in (change.old, change.new))
    if numbers and change.special:
        return SPECIAL
    return TENSOR if numbers and change.may_be_tensor else FIX


def _ops(difference: Difference, situation: Situation) -> _Parts:
    parts = []
    if difference.added:
        parts.append(f"it has {_names(difference.added)} that the nearest known graph has not")
    if difference.removed:
        parts.append(f"it lacks {_names(difference.removed)} that the nearest known graph has")
    what = "; ".join(parts)
    names = tuple(sorted({op.op for op in (*difference.added, *difference.removed)}))
    details = {"added": [op.op for op in difference.added], "removed": [op.op for op in difference.removed]}
    if situation.cause.startswith("the graph reached"):
        return "limit", f"{what} ({situation.cause}).", situation.line, (situation.line,), CUT, details
    # A read that runs the graph itself came after its ops.
    deciding = _deciding([line for line in situation.reads if line != situation.line])
    if deciding:
        what += f". Earlier in this step a value was read at {' and at '.join(deciding)}."
        return "branch", what, deciding[0], (*deciding,), WHERE, details | {"reads": deciding}
    line = next((op.line for op in (*difference.added, *difference.removed) if op.line), situation.line)
    return "ops", f"{what}.", line, (line, *names), BRANCH, details


def _names(ops: Sequence[summary.OpSummary]) -> str:
    counted = Counter(op.op for op in ops)
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


def _other(difference: Difference, situation: Situation) -> _Parts:
    line = situation.line
    if difference.kind == "wiring":
        return "wiring", "", line, (line,), WIRE, {}
    if difference.kind == "results":
        more = ", ".join(f"{n:+} {name}" for name, n in difference.counts.items() if n)
        return "results", f"({more})." if more else "", line, (line,), KEEP, dict(difference.counts)
    what = "no difference from a known graph can be seen; it may have left the cache (XLA_COMPILATION_CACHE_SIZE)."
    return "nothing", what, line, (line,), "", {}
