"""Fuses consecutive foreach ops (optimizer updates) of CPU programs into one call of a CPU kernel.

XLA compiles a kernel for each parameter and each op that it cannot fuse: most of the kernels of a training step, most
of its compile time, and each of them reads and writes memory. The CPU kernel
(cpu_backend/csrc/kernels/foreach_program.cpp) runs all fused ops on a block of elements while it is in the cache.

    can be fused          aten::_foreach_ ops in _OPCODES; float32 only; all lists of equal shapes, none of them empty;
                          scalars shared by all elements
    ends the fused call   another op reads an output, or a foreach op has lists of other shapes

Lists are partitioned (``list_partitions``), one call per partition.

Aliasing. An optimizer updates parameters and state in place, so outputs overwrite operands (``_written``):

    p1 = add(p, g, alpha=-lr)                 registers: p g | r0 = add p g | r1 = mul r0 s
    p2 = mul(p1, s)                           r1 -> first operand of mul: r0 -> first operand of add: p
    output r1 shares the buffer of p          g is only read; r0 exists in scratch memory only

The first operand of each op is the list that it updates in place, so the chain of first operands leads from an output
to the list whose memory it may take. Overwriting is safe under four conditions:

1. Element i of an output depends on element i of the operands only, and the kernel reads a block of all operands before
   it writes this block of any output. So all ops in the call may still read the old value of the list.
2. At most one output overwrites a list: of two outputs updated from the same list, the second gets its own buffer.
3. The array appears once among the operands. An array in two lists or twice in a list would be overwritten in one
   position while another block still reads it.
4. Nothing else reads the array: it is a donated input, or a value that only ops of this call read.

If XLA finds a later reader of a donated input, it copies the operand first: the result stays correct, only slower.
cpu_scheduling.py orders the program such that this copy is not needed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_xla._engine.compilation import hlo_metadata
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.graph.graph_spec import ArgTag, GraphSpec, NodeSpec, operands
from torch_xla._engine.lowering import RULES, cpu_kernel_call
from torch_xla._engine.lowering.apply_rule import apply_rule
from torch_xla._engine.lowering.registry import LoweringRuleContext, ScalarOperand, TensorSpec

#: Limits of one call: the number of arrays in a list, as the outputs are a tuple and XLA's compile time per output
#: grows with its length; and the number of elements in a list, unless a single array has more. Calls run as soon as
#: their gradients are ready, concurrently with the backward pass, and with each other if many are ready: one thread
#: of XLA runs all calls of a short queue. The loop of a larger array is shared by XLA's threads (threading/xla_pool.h).
_MOST_ARRAYS = 64
_MOST_NUMBERS = 1 << 16

_PREFIX = "aten::_foreach_"
#: (operator, number of lists, number of scalars) -> the name of its opcode. The opcodes themselves are defined in
#: cpu_backend/csrc/kernels/foreach_program.cpp only; KernelLibrary.foreach_opcodes() reads them.
_OPCODES = {
    ("add", 2, 1): "add_scaled", ("sub", 2, 1): "sub_scaled", ("add", 1, 1): "add_number", ("add", 1, 2): "add_number",
    ("sub", 1, 1): "sub_number", ("mul", 2, 0): "mul", ("mul", 1, 1): "mul_number", ("div", 2, 0): "div",
    ("div", 1, 1): "div_number", ("addcmul", 3, 1): "addcmul", ("addcdiv", 3, 1): "addcdiv", ("lerp", 2, 1): "lerp",
    ("maximum", 2, 0): "maximum", ("clamp_min", 2, 0): "maximum", ("minimum", 2, 0): "minimum",
    ("clamp_max", 2, 0): "minimum", ("sqrt", 1, 0): "sqrt", ("neg", 1, 0): "neg", ("abs", 1, 0): "abs",
}  # fmt: skip
#: Opcodes whose scalar defaults to 1.
_SCALED = ("add_scaled", "sub_scaled", "addcmul", "addcdiv")
_ONE = (ArgTag.CONSTANT, 1)

Argument = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class FusableOp:
    """A foreach op that can be fused: its opcode, the values of its lists, and its scalar, if it has one."""

    opcode: str
    lists: tuple[tuple[int, ...], ...]
    number: Argument | None


def fusable_ops(spec: GraphSpec) -> dict[int, FusableOp]:
    """Return the nodes of a graph that can be fused, by node number."""
    found = ((number, _member(spec, node)) for number, node in enumerate(spec.nodes) if node.op.startswith(_PREFIX))
    return {number: member for number, member in found if member is not None}


def _member(spec: GraphSpec, node: NodeSpec) -> FusableOp | None:
    lists = [argument[1] for argument in node.args if argument[0] == ArgTag.VALUE_LIST]
    numbers = [_number(spec, argument) for argument in node.args if argument[0] != ArgTag.VALUE_LIST]
    opcode = _OPCODES.get((node.op.removeprefix(_PREFIX).split(".")[0], len(lists), len(numbers)))
    if not node.outs or opcode is None or None in numbers or numbers[1:] not in ([], [_ONE]):
        return None
    expected = [(shape, torch.float32) for shape, _ in node.outs]
    given = [[spec.value_spec(value) if tag == ArgTag.VALUE else None for tag, value in items] for items in lists]
    if node.outs != expected or any(found != expected for found in given) or any(0 in s for s, _ in expected):
        return None
    number = None if opcode in _SCALED and numbers[0] == _ONE else next(iter(numbers), None)
    return FusableOp(opcode, tuple(tuple(value for _, value in items) for items in lists), number)


def _number(spec: GraphSpec, argument: Argument) -> Argument | None:
    """Return the scalar that an argument is for all elements; None if the elements have different ones."""
    tag, payload = argument
    if tag == ArgTag.SCALAR_LIST and all(item == payload[0] for item in payload):
        return _number(spec, payload[0])
    if tag == ArgTag.VALUE:
        return argument if spec.value_spec(payload) in (((), torch.float32), ((), torch.float64)) else None
    return (
        argument
        if tag in (ArgTag.FLOAT_INPUT, ArgTag.INT_INPUT)
        or (tag == ArgTag.CONSTANT and isinstance(payload, (int, float)))
        else None
    )


def list_partitions(outs: Sequence[TensorSpec]) -> list[range]:
    """Partition lists of arrays with these output specs; returns the list positions that each call computes."""
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
    opcode: str
    lists: list[int]  # operands: the register of an earlier op, or -1 - the index of an input list
    number: int  # index of its scalar, or -1


class ForeachFusion:
    """Consecutive foreach ops that are not evaluated yet. Belongs to one trace of a graph, whose values it sets.

    empty      -- add -->       pending: its outputs have no values yet
    pending    -- add -->       pending; evaluates first if the node's lists have other shapes
    pending    -- evaluate -->  empty: another op reads an output, or the graph ends
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
        self._groups: dict[int, int] = {}  # value of a fused node -> its register
        self._items: dict[int, tuple[int, int]] = {}  # value of a getitem -> (register, element)
        self._read: dict[tuple[int, ...], int] = {}  # values of an input list -> its index
        self._numbers: dict[Argument, int] = {}  # scalar -> its index

    def pending(self, value: int) -> bool:
        """Return whether a value is pending."""
        return value in self._items

    def contains(self, group: int) -> bool:
        """Return whether the node with value ``group`` was ever fused: its getitems are pending or evaluated."""
        return group in self._taken

    def add(self, value: int, node: NodeSpec, member: FusableOp) -> bool:
        """Add the node with value number ``value``; False if an operand is not an array."""
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
        self._steps.append(_FusedOp(node, member.opcode, [self._register(values) for values in member.lists], number))
        return True

    def _continues(self, node: NodeSpec, member: FusableOp) -> bool:
        if node.outs != self._steps[0].node.outs or (member.number is not None and self._is_pending(member.number)):
            return False
        return all(
            self._register_of(values) is not None or not any(map(self.pending, values)) for values in member.lists
        )

    def _is_pending(self, argument: Argument) -> bool:
        return argument[0] == ArgTag.VALUE and self.pending(argument[1])

    def _register_of(self, values: Sequence[int]) -> int | None:
        """Return the register whose outputs are these values in this order; None if there is none."""
        register, _ = self._items.get(values[0], (None, 0))
        matches = register is not None and all(self._items.get(v) == (register, i) for i, v in enumerate(values))
        return register if matches else None

    def _register(self, values: tuple[int, ...]) -> int:
        register = self._register_of(values)
        return -1 - self._read.setdefault(values, len(self._read)) if register is None else register

    def evaluate(self) -> None:
        """Compute all pending values."""
        if self._steps:
            first, known = self._steps[0].node, {item: value for value, item in self._items.items()}
            for part in list_partitions(first.outs):
                results = hlo_metadata.with_metadata(first.op, first.origin, partial(self._call, part))
                for (register, element), result in results.items():
                    if (value := known.get((register, element))) is not None:
                        self._complete(value, result)
        self._begin()

    def _call(self, part: range) -> dict[tuple[int, int], jax.Array]:
        """Call the kernel for a partition; returns the outputs by (register, element)."""
        made = self._needed()
        arrays = [self._values[values[i]] for values in self._read for i in part]
        numbers = [_array(self._argument(number)) for number in self._numbers]
        keys = [(register, i) for register in made for i in part]
        outs = [jax.ShapeDtypeStruct(self._steps[register].node.outs[i][0], np.float32) for register, i in keys]
        place = {register: len(self._read) + register for register in range(len(self._steps))}
        place |= {-1 - at: at for at in range(len(self._read))} | {_NONE: -1}
        opcodes, code = _opcode_numbers(), list[int]()
        for register, step in enumerate(self._steps):
            code += [
                opcodes[step.opcode],
                *(place[r] for r in (register, *[*step.lists, _NONE, _NONE][:3])),
                step.number,
            ]
        found = cpu_kernel_call.cpu_kernel_call_in_place(
            "lists", self._default(part, made), [*arrays, *numbers], outs, self._written(part, made), code=code,
            lists=len(self._read), results=[place[register] for register in made],
        )  # fmt: skip
        return dict(zip(keys, found, strict=True))

    def _needed(self) -> list[int]:
        """Return the registers whose outputs are read outside of the fused ops."""
        outside = {v for v in self._items if not all(user in self._groups for user in self._users[v])}
        return sorted({self._items[value][0] for value in outside})

    def _written(self, part: range, made: Sequence[int]) -> dict[int, int]:
        """Return operand index -> index of the output that overwrites it (see Aliasing in the module docstring)."""
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
        """Return the fallback: a function of the list elements and scalars that applies the ops' lowering rules."""
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
                    lists[next(given)] if tag == ArgTag.VALUE_LIST
                    else payload if step.number < 0 or (tag, payload) == _ONE else numbers[step.number]
                    for tag, payload in step.node.args
                ]  # fmt: skip
                lists[register] = apply_rule(
                    RULES[step.node.op], arguments, outs, LoweringRuleContext(step.node.op, outs)
                )
            return [result for register in made for result in lists[register]]

        return evaluated


_NONE = -(1 << 30)


def _opcode_numbers() -> Mapping[str, int]:
    """Return the opcodes by name; zeros without the kernel library, where programs use the default lowering."""
    kernels = library.load_library()
    return defaultdict(int) if kernels is None else kernels.foreach_opcodes()


def _array(number: Any) -> jax.Array:
    value = number.value if isinstance(number, ScalarOperand) else number
    return value if isinstance(value, jax.Array) else jnp.asarray(value, np.float64)


def _argument(tag: int, array: jax.Array) -> Any:
    """Convert a scalar of the program to a rule argument."""
    return array if tag == ArgTag.VALUE else ScalarOperand(array, int if tag == ArgTag.INT_INPUT else float)


def _value_users(spec: GraphSpec) -> dict[int, list[int]]:
    """Return the readers of each value; -1 for the graph's outputs."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(spec.nodes):
        for operand in operands(node):
            found[operand].append(len(spec.leaves) + number)
    for root in spec.roots:
        found[root].append(-1)
    return found
