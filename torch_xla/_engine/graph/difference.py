"""How a new graph differs from one that is known, as data: the first thing in the order below that explains it.

dtype or shape of inputs > ops added or removed > a constant argument > how the ops are connected > what is kept
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine.base.compat import dispatcher
from torch_xla._engine.graph.summary import GraphSummary, Leaf, OpSummary
from torch_xla._engine.lowering import RULES, decompose

#: Sequences of ops with more pairs of equal ones than this are compared by how often each op occurs in them: a diff
#: takes 2 µs and more a pair, while a step waits.
_DIFF_LIMIT = 20_000


@dataclass(frozen=True, slots=True)
class LeafChange:
    """Input ``index`` of the program has another shape or dtype; ``user`` is the first op that has it as an input."""

    index: int
    old: Leaf
    new: Leaf
    user: OpSummary | None


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """Argument ``name`` of ``op``, a constant of the program, has another value; None where it is not given.

    ``special``: only 0, 1 and -1 are constants in this place, other numbers are inputs. ``may_be_tensor``: the op has
    an overload that takes a tensor there.
    """

    op: OpSummary
    name: str
    type: str
    old: Any
    new: Any
    special: bool = False
    may_be_tensor: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """``kind``: inputs, ops, argument, wiring, results or nothing; the fields that say more belong to it."""

    kind: str
    inputs: tuple[LeafChange, ...] = ()
    argument: ArgumentChange | None = None
    added: tuple[OpSummary, ...] = ()
    removed: tuple[OpSummary, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)  # by how much the number of results, donations has changed


def nearest(new: GraphSummary, known: Iterable[GraphSummary]) -> GraphSummary | None:
    """The known graph that is most like the new one; of equals the latest. None where none is known."""
    return min(reversed(list(known)), key=lambda old: _distance(old, new), default=None)


def _distance(old: GraphSummary, new: GraphSummary) -> tuple[int, int, int]:
    ops = sum(((old.histogram - new.histogram) + (new.histogram - old.histogram)).values())
    leaves = abs(len(old.leaves) - len(new.leaves))
    leaves += sum(a != b for a, b in zip(old.leaves, new.leaves, strict=False))
    baked = sum(a.baked != b.baked for a, b in zip(old.ops, new.ops, strict=False)) if ops == leaves == 0 else 0
    return ops, leaves, baked


def compare(old: GraphSummary, new: GraphSummary) -> Difference:
    """What makes ``new`` another program than ``old``."""
    inputs = _input_changes(old, new)
    if inputs:
        return Difference("inputs", inputs=inputs)
    if [op.op for op in old.ops] != [op.op for op in new.ops]:
        added, removed = _changed_ops(old.ops, new.ops)
        return Difference("ops", added=added, removed=removed)
    argument = next((c for a, b in zip(old.ops, new.ops, strict=True) if (c := _argument_change(a, b))), None)
    if argument is not None:
        return Difference("argument", argument=argument)
    if [op.inputs for op in old.ops] != [op.inputs for op in new.ops]:
        return Difference("wiring")
    counts = Counter(results=len(new.roots) - len(old.roots), donated=len(new.donated) - len(old.donated))
    same = (old.roots, old.donated) == (new.roots, new.donated)
    return Difference("nothing" if same else "results", counts=counts)


def _input_changes(old: GraphSummary, new: GraphSummary) -> tuple[LeafChange, ...]:
    """The inputs of another shape or dtype, if the graphs have inputs of the same number and ranks."""
    if [len(shape) for shape, _ in old.leaves] != [len(shape) for shape, _ in new.leaves]:
        return ()
    pairs = enumerate(zip(old.leaves, new.leaves, strict=True))
    return tuple(LeafChange(i, a, b, new.first_user(i)) for i, (a, b) in pairs if a != b)


def _changed_ops(
    old: tuple[OpSummary, ...], new: tuple[OpSummary, ...]
) -> tuple[tuple[OpSummary, ...], tuple[OpSummary, ...]]:
    """(ops that only the new graph has, ops that only the old one has), in the order of the graphs."""
    start = 0
    while start < min(len(old), len(new)) and old[start].op == new[start].op:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end].op == new[-1 - end].op:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    before, now = Counter(op.op for op in old), Counter(op.op for op in new)
    if sum(before[op] * now[op] for op in before) > _DIFF_LIMIT:
        return _surplus(new, old), _surplus(old, new)
    added: list[OpSummary] = []
    removed: list[OpSummary] = []
    matcher = difflib.SequenceMatcher(None, [op.op for op in old], [op.op for op in new], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            removed += old[i1:i2]
            added += new[j1:j2]
    return tuple(added), tuple(removed)


def _surplus(of: tuple[OpSummary, ...], over: tuple[OpSummary, ...]) -> tuple[OpSummary, ...]:
    """Of each op as many as ``of`` has more than ``over``, the last ones."""
    more = Counter(op.op for op in of) - Counter(op.op for op in over)
    out = []
    for op in reversed(of):
        if more[op.op] > 0:
            more[op.op] -= 1
            out.append(op)
    return tuple(reversed(out))


def _argument_change(old: OpSummary, new: OpSummary) -> ArgumentChange | None:
    if old.baked == new.baked:
        return None
    before, after = dict(old.baked), dict(new.baked)
    position = next((i for i in sorted({*before, *after}) if before.get(i) != after.get(i)), None)
    if position is None:  # differs in a way that == does not see, such as 1 and True
        position = next(i for i in after if repr(before[i]) != repr(after[i]))
    name, kind = _describe_argument(new.op, position)
    rule = RULES.get(new.op)
    special = kind in ("number", "Scalar", "Tensor") and rule is not None and name not in rule.bake
    values = before.get(position), after.get(position)
    return ArgumentChange(new, name, kind, *values, special, _has_tensor_overload(new.op, name, kind))


def _describe_argument(op: str, position: int) -> tuple[str, str]:
    """(name, type) of an argument, from the op's schema; ops of our own, and what we add to arguments, have none."""
    try:
        argument = dispatcher.schema(decompose.overload(op)).arguments[position]
    except (AttributeError, IndexError, RuntimeError):
        return f"number {position}", ""
    return argument.name, str(argument.type)


def _has_tensor_overload(op: str, name: str, kind: str) -> bool:
    if kind not in ("number", "Scalar", "Tensor"):  # a float or an int of the schema stays one
        return False
    packet = decompose.overload(op).overloadpacket
    overloads = (dispatcher.schema(getattr(packet, overload)) for overload in packet.overloads())
    return any(argument.name == name and str(argument.type) == "Tensor" for s in overloads for argument in s.arguments)
