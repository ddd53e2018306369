"""Compare the summaries of two graphs and return the first difference that explains a recompilation.

Differences are tested in this order; the first match is the result:

    kind      difference
    setting   placement, matmul precision, default dtype
    inputs    shape or dtype of inputs, if all ranks are equal
    ops       operators added or removed
    inputs    rank of inputs
    layout    sharding of inputs
    argument  a constant argument
    wiring    connections between ops
    results   which tensors are results or donated
    nothing   none, and one program computes both
    unknown   none of the above, but the keys differ
"""

from __future__ import annotations

import difflib
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch_xla._engine.compat import dispatcher
from torch_xla._engine.graph.graph_summary import GraphSummary, Leaf, OpSummary, ScalarInput
from torch_xla._engine.lowering import RULES, decompose

#: Placeholder for the value of a tensor argument.
TENSOR = ScalarInput("tensor")

#: The recorder's internal op that selects one result of an op with several.
GETITEM = "torch_xla::getitem"

#: Schema types of arguments whose numbers are program inputs, except for the special values 0, 1 and -1.
_NUMBERS = ("number", "Scalar", "Tensor")

#: Above this number of pairs of equal ops, compare op counts instead of sequences: a sequence diff takes 2 µs or more
#: per pair and delays the step.
_DIFF_LIMIT = 20_000


@dataclass(frozen=True, slots=True)
class LeafChange:
    """The shape or dtype of input ``index`` changed; ``user`` is the first op that reads it."""

    index: int
    old: Leaf
    new: Leaf
    user: OpSummary | None


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """The value of argument ``name`` of ``op`` changed.

    Attributes:
      type: the type in the operator schema.
      old, new: a constant of the program, a ScalarInput, TENSOR, or None if the argument is omitted.
      special: whether only 0, 1 and -1 are constants for this argument and other numbers are program inputs.
      may_be_tensor: whether an overload of the op takes a tensor for this argument.
    """

    op: OpSummary
    name: str
    type: str
    old: Any
    new: Any
    special: bool = False
    may_be_tensor: bool = False

    @property
    def is_moving_start(self) -> bool:
        """Whether a constant slice start or index becomes a program input (recorder/csrc/graph/slice_starts.h)."""
        becomes_input = isinstance(self.new, ScalarInput) and not isinstance(self.old, ScalarInput)
        return becomes_input and self.type not in _NUMBERS


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that applies to the whole graph, or to ``op``, changed."""

    name: str
    old: Any
    new: Any
    op: OpSummary | None = None


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """The sharding of input ``index`` changed; ``old`` and ``new`` are sharding IDs (base/sharding_ids.py)."""

    index: int
    old: int
    new: int
    user: OpSummary | None


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """The difference between two graphs: its kind (see the module docstring) and the details of that kind."""

    kind: str
    setting: SettingChange | None = None
    inputs: tuple[LeafChange, ...] = ()
    layouts: tuple[LayoutChange, ...] = ()
    argument: ArgumentChange | None = None
    added: tuple[OpSummary, ...] = ()
    removed: tuple[OpSummary, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)  # "results", "donated" -> change of their number


def nearest_summary(new: GraphSummary, known: Iterable[GraphSummary]) -> GraphSummary | None:
    """Return the closest match of ``new`` among the known graphs, the latest of several; None if there are none."""
    return min(reversed(list(known)), key=lambda old: _distance(old, new), default=None)


def _distance(old: GraphSummary, new: GraphSummary) -> tuple[int, int, int, bool]:
    ops = sum(((old.histogram - new.histogram) + (new.histogram - old.histogram)).values())
    leaves = abs(len(old.leaves) - len(new.leaves))
    leaves += sum(a != b for a, b in zip(old.leaves, new.leaves, strict=False))
    baked = sum(a.baked != b.baked for a, b in zip(old.ops, new.ops, strict=False)) if ops == leaves == 0 else 0
    return ops, leaves, baked, not old.is_same_program(new)


def diff_summaries(old: GraphSummary, new: GraphSummary) -> GraphDiff:
    """Return why ``new`` needs another program than ``old``."""
    if (setting := _setting_change(old, new)) is not None:
        return GraphDiff("setting", setting=setting)
    if _ranks(old) == _ranks(new) and (inputs := _input_changes(old, new)):
        return GraphDiff("inputs", inputs=inputs)
    if [op.name for op in old.ops] != [op.name for op in new.ops]:
        added, removed = _changed_ops(old.ops, new.ops)
        return GraphDiff("ops", added=added, removed=removed)
    if len(old.leaves) == len(new.leaves) and (inputs := _input_changes(old, new)):
        return GraphDiff("inputs", inputs=inputs)
    if layouts := _layout_changes(old, new):
        return GraphDiff("layout", layouts=layouts)
    pairs = list(zip(old.ops, new.ops, strict=True))
    changes = (c for a, b in pairs if (c := _argument_change(a, b)))
    if (argument := next(changes, None) or _another_result(new, pairs)) is not None:
        return GraphDiff("argument", argument=argument)
    if len(old.leaves) != len(new.leaves) or any(
        (a.inputs, a.tensor_counts) != (b.inputs, b.tensor_counts) for a, b in pairs
    ):
        return GraphDiff("wiring")
    if (old.roots, old.donated) != (new.roots, new.donated):
        counts = Counter(results=len(new.roots) - len(old.roots), donated=len(new.donated) - len(old.donated))
        return GraphDiff("results", counts=counts)
    return GraphDiff("nothing" if old.is_same_program(new) else "unknown")


def _another_result(new: GraphSummary, pairs: Iterable[tuple[OpSummary, OpSummary]]) -> ArgumentChange | None:
    """Return the first change of which result of an op is used, as a change of its argument ``index``."""
    for a, b in pairs:
        if b.op == GETITEM and a.baked != b.baked:
            producer = b.inputs[0] - len(new.leaves) if b.inputs else -1
            op = new.ops[producer] if 0 <= producer < len(new.ops) else b
            (_, old_index), (_, new_index) = a.baked[-1], b.baked[-1]
            return ArgumentChange(op, "index", GETITEM, old_index, new_index)
    return None


def _setting_change(old: GraphSummary, new: GraphSummary) -> SettingChange | None:
    if old.place != new.place:
        return SettingChange("place", old.place, new.place)
    if old.precision != new.precision:
        return SettingChange("precision", old.precision, new.precision)
    if len(old.ops) == len(new.ops):
        for a, b in zip(old.ops, new.ops, strict=True):
            if a.default_dtype != b.default_dtype:
                return SettingChange("default dtype", a.default_dtype, b.default_dtype, b)
    return None


def _ranks(graph: GraphSummary) -> list[int]:
    return [len(shape) for shape, _ in graph.leaves]


def _input_changes(old: GraphSummary, new: GraphSummary) -> tuple[LeafChange, ...]:
    """Return the inputs whose shape or dtype changed; the graphs have equally many inputs."""
    pairs = enumerate(zip(old.leaves, new.leaves, strict=True))
    return tuple(LeafChange(i, a, b, new.first_user(i)) for i, (a, b) in pairs if a != b)


def _layout_changes(old: GraphSummary, new: GraphSummary) -> tuple[LayoutChange, ...]:
    if len(old.layouts) != len(new.layouts):  # the number of inputs changed
        return ()
    pairs = enumerate(zip(old.layouts, new.layouts, strict=True))
    return tuple(LayoutChange(i, a, b, new.first_user(i)) for i, (a, b) in pairs if a != b)


def _changed_ops(
    old: tuple[OpSummary, ...], new: tuple[OpSummary, ...]
) -> tuple[tuple[OpSummary, ...], tuple[OpSummary, ...]]:
    """Return (added ops, removed ops), each in graph order."""
    start = 0
    while start < min(len(old), len(new)) and old[start].name == new[start].name:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end].name == new[-1 - end].name:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    before, now = Counter(op.name for op in old), Counter(op.name for op in new)
    if sum(before[op] * now[op] for op in before) > _DIFF_LIMIT:
        return _extra_ops(new, old), _extra_ops(old, new)
    added: list[OpSummary] = []
    removed: list[OpSummary] = []
    matcher = difflib.SequenceMatcher(None, [op.name for op in old], [op.name for op in new], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            removed += old[i1:i2]
            added += new[j1:j2]
    return tuple(added), tuple(removed)


def _extra_ops(ops: tuple[OpSummary, ...], others: tuple[OpSummary, ...]) -> tuple[OpSummary, ...]:
    """Return the multiset difference of two sequences of ops by name, taking the last occurrences in ``ops``."""
    more = Counter(op.name for op in ops) - Counter(op.name for op in others)
    out = []
    for op in reversed(ops):
        if more[op.name] > 0:
            more[op.name] -= 1
            out.append(op)
    return tuple(reversed(out))


def _exact(value: Any) -> Any:
    """Return a value that compares as the recorder does: 1, 1.0 and True are distinct, and so are 0.0 and -0.0."""
    if isinstance(value, (tuple, list)):
        return [_exact(part) for part in value]
    if isinstance(value, complex):
        return "complex", struct.pack("dd", value.real, value.imag)
    return type(value).__name__, struct.pack("d", value) if isinstance(value, float) else value


def _arguments_by_position(op: OpSummary) -> dict[int, Any]:
    return dict.fromkeys((position for position, _ in op.tensor_counts), TENSOR) | dict(op.baked)


def _argument_change(old: OpSummary, new: OpSummary) -> ArgumentChange | None:
    if new.op == GETITEM:  # see _another_result
        return None
    before, after = _arguments_by_position(old), _arguments_by_position(new)
    position = next((i for i in sorted({*before, *after}) if _exact(before.get(i)) != _exact(after.get(i))), None)
    if position is None:
        return None
    name, kind = _describe_argument(new.op, position)
    rule = RULES.get(new.op)
    special = kind in _NUMBERS and rule is not None and name not in rule.static_args
    values = before.get(position), after.get(position)
    return ArgumentChange(new, name, kind, *values, special, _has_tensor_overload(new.op, name, kind))


def _describe_argument(op: str, position: int) -> tuple[str, str]:
    """Return (name, type) of an argument from the op's schema; both are empty for internal ops, which have none."""
    try:
        argument = dispatcher.schema(decompose.overload(op)).arguments[position]
    except (AttributeError, IndexError, RuntimeError):
        return "", ""
    return argument.name, str(argument.type)


def _has_tensor_overload(op: str, name: str, kind: str) -> bool:
    if kind not in _NUMBERS:  # overloads do not turn a schema float or int into a tensor
        return False
    packet = decompose.overload(op).overloadpacket
    overloads = (dispatcher.schema(getattr(packet, overload)) for overload in packet.overloads())
    return any(argument.name == name and str(argument.type) == "Tensor" for s in overloads for argument in s.arguments)
