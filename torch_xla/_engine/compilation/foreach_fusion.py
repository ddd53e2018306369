"""Operations on lists in a row, as an optimizer's, are one call of a handler in a program for the CPU.

XLA would make a kernel of each parameter and operation that it cannot fuse with another: most of the kernels of a
training step, and of the time to compile it; and each goes through memory anew. The handler (cpu_backend/csrc/kernels/foreach_program.cpp)
computes all of them for a block of elements while it is in the cache.

    belongs             aten::_foreach_ in _CODES; float32 throughout; all lists of the same shapes, none of them empty;
                        numbers that all elements share
    the chain ends      something else needs a result, or lists of other shapes come

Lists are cut in parts (``parts_of``), a call for each.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.compilation import hlo_metadata
from torch_xla._engine.graph.graph_spec import GraphSpec, NodeSpec, operands
from torch_xla._engine.lowering import RULES, cpu_kernel_call
from torch_xla._engine.lowering.apply_rule import apply_rule
from torch_xla._engine.lowering.registry import LoweringRuleContext, Number, Promise

#: Of a call's lists: so many arrays at most, as results are a tuple, each of which costs XLA's compiler what the tuple
#: is long; and so many numbers in each list, unless one array has more. Calls run beside each other and beside the rest
#: of backward, as soon as their gradients are there: a few large ones would keep a core waiting.
_MOST_ARRAYS = 64
_MOST_NUMBERS = 1 << 16

_PREFIX = "aten::_foreach_"
#: (operation, lists, numbers) -> what cpu_backend/csrc/kernels/foreach_program.cpp calls it.
_CODES = {
    ("add", 2, 1): 0, ("sub", 2, 1): 1, ("add", 1, 1): 2, ("add", 1, 2): 2, ("sub", 1, 1): 3, ("mul", 2, 0): 4,
    ("mul", 1, 1): 5, ("div", 2, 0): 6, ("div", 1, 1): 7, ("addcmul", 3, 1): 8, ("addcdiv", 3, 1): 9,
    ("lerp", 2, 1): 10, ("maximum", 2, 0): 11, ("clamp_min", 2, 0): 11, ("minimum", 2, 0): 12, ("clamp_max", 2, 0): 12,
    ("sqrt", 1, 0): 13, ("neg", 1, 0): 14, ("abs", 1, 0): 15,
}  # fmt: skip
#: Those that need not be given the number 1.
_SCALED = (0, 1, 8, 9)
_ONE = (0, 1)

Argument = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class FusableOp:
    """A node that may be part of a chain: its code, the values of its lists, and its number, if it has one."""

    code: int
    lists: tuple[tuple[int, ...], ...]
    number: Argument | None


def fusable_ops(spec: GraphSpec) -> dict[int, FusableOp]:
    """The nodes of a graph that may be part of a chain, by number."""
    found = ((number, _member(spec, node)) for number, node in enumerate(spec.nodes) if node.op.startswith(_PREFIX))
    return {number: member for number, member in found if member is not None}


def _member(spec: GraphSpec, node: NodeSpec) -> FusableOp | None:
    lists = [argument[1] for argument in node.args if argument[0] == 2]
    numbers = [_number(spec, argument) for argument in node.args if argument[0] != 2]
    code = _CODES.get((node.op.removeprefix(_PREFIX).split(".")[0], len(lists), len(numbers)))
    if not node.outs or code is None or None in numbers or numbers[1:] not in ([], [_ONE]):
        return None
    promised = [(shape, torch.float32) for shape, _ in node.outs]
    given = [[spec.value_spec(value) if tag == 1 else None for tag, value in items] for items in lists]
    if node.outs != promised or any(found != promised for found in given) or any(0 in s for s, _ in promised):
        return None
    number = None if code in _SCALED and numbers[0] == _ONE else next(iter(numbers), None)
    return FusableOp(code, tuple(tuple(value for _, value in items) for items in lists), number)


def _number(spec: GraphSpec, argument: Argument) -> Argument | None:
    """The one number that an argument is for all elements; None where there is none such."""
    tag, payload = argument
    if tag == 7 and all(item == payload[0] for item in payload):
        return _number(spec, payload[0])
    if tag == 1:
        return argument if spec.value_spec(payload) in (((), torch.float32), ((), torch.float64)) else None
    return argument if tag in (3, 4) or (tag == 0 and isinstance(payload, (int, float))) else None


def list_partitions(outs: Sequence[Promise]) -> list[range]:
    """The places in lists of arrays like these that are computed in one call."""
    parts, first, numbers = [], 0, 0
    for place, (shape, _) in enumerate(outs):
        size = math.prod(shape)
        if place > first and (numbers + size > _MOST_NUMBERS or place - first == _MOST_ARRAYS):
            parts.append(range(first, place))
            first, numbers = place, 0
        numbers += size
    return [*parts, range(first, len(outs))]


@dataclass(frozen=True, slots=True)
class _FusedOp:
    node: NodeSpec
    code: int
    lists: list[int]  # what is read: a register of an earlier step's results, or -1 - its place among the lists read
    number: int  # its place among the numbers, or -1


class ForeachFusion:
    """Nodes in a row that are yet to be evaluated. Belongs to one evaluation of a graph, whose values it completes.

    empty      -- add -->       pending: its results are no values yet
    pending    -- add -->       pending; evaluated before, where the node's lists have other shapes
    pending    -- evaluate -->  empty: something needs a result, or the graph ends
    """

    def __init__(
        self, spec: GraphSpec, values: Sequence[Any], argument: Callable[[Argument], Any],
        complete: Callable[[int, jax.Array], None],
    ) -> None:  # fmt: skip
        self._spec, self._values, self._argument, self._complete = spec, values, argument, complete
        self._users, self._donated = _value_users(spec), frozenset(spec.donated)
        self._taken: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        self._steps: list[_FusedOp] = []
        self._groups: dict[int, int] = {}  # value of a step's node -> its register
        self._items: dict[int, tuple[int, int]] = {}  # value of a getitem -> (register, element)
        self._read: dict[tuple[int, ...], int] = {}  # values of a list that is read -> its place
        self._numbers: dict[Argument, int] = {}  # -> its place

    def pending(self, value: int) -> bool:
        """Whether this has yet to compute a value."""
        return value in self._items

    def contains(self, group: int) -> bool:
        """Whether a node, whose value has that number, was ever taken: the values of its getitems are none, or done."""
        return group in self._taken

    def add(self, value: int, node: NodeSpec, member: FusableOp) -> bool:
        """Whether it takes a node, whose value has that number: not one that reads something else than arrays."""
        if self._steps and not self._continues(node, member):
            self.evaluate()
        read = [v for values in member.lists if self._register_of(values) is None for v in values]
        if not all(isinstance(self._values[v], jax.Array) for v in read):
            return False
        number = -1 if member.number is None else self._numbers.setdefault(member.number, len(self._numbers))
        self._taken.add(value)
        for user in self._users[value]:
            self._items[user] = len(self._steps), self._spec.nodes[user - len(self._spec.leaves)].args[1][1]
        self._groups[value] = len(self._steps)
        self._steps.append(_FusedOp(node, member.code, [self._register(values) for values in member.lists], number))
        return True

    def _continues(self, node: NodeSpec, member: FusableOp) -> bool:
        if node.outs != self._steps[0].node.outs or (member.number is not None and self._is_pending(member.number)):
            return False
        return all(
            self._register_of(values) is not None or not any(map(self.pending, values)) for values in member.lists
        )

    def _is_pending(self, argument: Argument) -> bool:
        return argument[0] == 1 and self.pending(argument[1])

    def _register_of(self, values: Sequence[int]) -> int | None:
        """The register whose results the values are, in order."""
        register, _ = self._items.get(values[0], (None, 0))
        whole = register is not None and all(self._items.get(v) == (register, i) for i, v in enumerate(values))
        return register if whole else None

    def _register(self, values: tuple[int, ...]) -> int:
        whole = self._register_of(values)
        return -1 - self._read.setdefault(values, len(self._read)) if whole is None else whole

    def evaluate(self) -> None:
        """Completes what is pending."""
        if self._steps:
            first, known = self._steps[0].node, {item: value for value, item in self._items.items()}
            for part in list_partitions(first.outs):
                results = hlo_metadata.with_metadata(first.op, first.origin, partial(self._call, part))
                for (register, element), result in results.items():
                    if (value := known.get((register, element))) is not None:
                        self._complete(value, result)
        self._begin()

    def _call(self, part: range) -> dict[tuple[int, int], jax.Array]:
        """Results for those elements, by register and element."""
        made = self._needed()
        arrays = [self._values[values[i]] for values in self._read for i in part]
        numbers = [_array(self._argument(number)) for number in self._numbers]
        keys = [(register, i) for register in made for i in part]
        outs = [jax.ShapeDtypeStruct(self._steps[register].node.outs[i][0], np.float32) for register, i in keys]
        place = {register: len(self._read) + register for register in range(len(self._steps))}
        place |= {-1 - at: at for at in range(len(self._read))} | {_NONE: -1}
        code: list[int] = []
        for register, step in enumerate(self._steps):
            code += [step.code, *(place[r] for r in (register, *[*step.lists, _NONE, _NONE][:3])), step.number]
        found = cpu_kernel_call.cpu_kernel_call_in_place(
            "lists", self._default(part, made), [*arrays, *numbers], outs, self._written(part, made), code=code,
            lists=len(self._read), results=[place[register] for register in made],
        )  # fmt: skip
        return dict(zip(keys, found, strict=True))

    def _needed(self) -> list[int]:
        """The registers of which something outside reads results."""
        outside = {v for v in self._items if not all(user in self._groups for user in self._users[v])}
        return sorted({self._items[value][0] for value in outside})

    def _written(self, part: range, made: Sequence[int]) -> dict[int, int]:
        """Operands that results are written over, by place: what an operation changes, where nothing else reads it."""
        lists, found, taken = list(self._read), {}, set()
        often = Counter(values[i] for values in lists for i in part)
        for at, register in enumerate(made):
            while register >= 0:
                register = self._steps[register].lists[0]
            base = -1 - register
            if base in taken:
                continue
            taken.add(base)
            for i, element in enumerate(part):
                value = lists[base][element]
                if often[value] == 1 and self._is_free(value):
                    found[base * len(part) + i] = at * len(part) + i
        return found

    def _is_free(self, value: int) -> bool:
        if value < len(self._spec.leaves):
            return value in self._donated
        return all(user in self._groups for user in self._users[value])

    def _default(self, part: range, made: Sequence[int]) -> cpu_kernel_call.Default:
        """The same by the rules of the operations, as a function of the lists' elements and the numbers."""
        steps, read, tags = self._steps, len(self._read), [tag for tag, _ in self._numbers]

        def evaluated(*arrays: jax.Array) -> list[Any]:
            lists: dict[int, Sequence[Any]] = {
                -1 - at: list(arrays[at * len(part) : (at + 1) * len(part)]) for at in range(read)
            }
            numbers = [_argument(tag, x) for tag, x in zip(tags, arrays[read * len(part) :], strict=True)]
            for register, step in enumerate(steps):
                outs = [step.node.outs[i] for i in part]
                given = iter(step.lists)
                arguments = [
                    lists[next(given)] if tag == 2 else payload if step.number < 0 or (tag, payload) == _ONE
                    else numbers[step.number]
                    for tag, payload in step.node.args
                ]  # fmt: skip
                lists[register] = apply_rule(
                    RULES[step.node.op], arguments, outs, LoweringRuleContext(step.node.op, outs)
                )
            return [result for register in made for result in lists[register]]

        return evaluated


_NONE = -(1 << 30)


def _array(number: Any) -> jax.Array:
    value = number.value if isinstance(number, Number) else number
    return value if isinstance(value, jax.Array) else jnp.asarray(value, np.float64)


def _argument(tag: int, array: jax.Array) -> Any:
    """A number of a program as a rule takes it."""
    return array if tag == 1 else Number(array, int if tag == 4 else float)


def _value_users(spec: GraphSpec) -> dict[int, list[int]]:
    """Of each value those that read it; -1 outside the graph."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(spec.nodes):
        for operand in operands(node):
            found[operand].append(len(spec.leaves) + number)
    for root in spec.roots:
        found[root].append(-1)
    return found
