"""Counts the cost of a compiled program from its optimized HLO: floating point operations and bytes of HBM traffic.

products      multiplications and additions of matmuls and convolutions, two for each pair of elements
flops         products, plus one for each element computed by any other operation
bytes         read from and written to HBM; a slice counts the elements it reads, an update those it writes
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from torch_xla._engine.aot import flop_counts
from torch_xla._engine.aot.hlo_parser import HloComputation, HloInstruction, HloModule, HloShape

#: Instructions without cost: they name values, or end an asynchronous operation.
_FREE = frozenset(
    (
        "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
        "opt-barrier", "add-dependency", "domain", "iota", "async-update",
    )
)  # fmt: skip
_CALLS = frozenset(("while", "call", "conditional", "async-start"))
_SLICES = frozenset(("slice", "dynamic-slice", "gather"))
#: Instructions that move or reshape elements, but compute none.
_MOVES = frozenset(
    (
        "copy", "transpose", "reshape", "broadcast", "slice", "dynamic-slice", "dynamic-update-slice",
        "concatenate", "pad", "reverse", "gather", "scatter", "convert", "bitcast-convert", "infeed", "outfeed", "send",
        "recv", "custom-call", "sort", "all-gather", "all-to-all", "collective-permute", "rng-bit-generator",
    )
)  # fmt: skip


@dataclass(slots=True)
class OpCost:
    """The cost of one execution of an instruction, or the sum over several."""

    products: float = 0.0
    other: float = 0.0
    read: float = 0.0
    written: float = 0.0

    @property
    def flops(self) -> float:
        return self.products + self.other

    @property
    def bytes(self) -> float:
        return self.read + self.written

    def add(self, more: OpCost, times: float = 1.0) -> None:
        self.products += times * more.products
        self.other += times * more.other
        self.read += times * more.read
        self.written += times * more.written


@dataclass(slots=True, eq=False)
class CostedOp:
    """An instruction, the number of its executions per run of the program, and the cost of one execution."""

    instruction: HloInstruction
    computation: HloComputation
    times: float
    cost: OpCost
    precise: str = ""  # dtype in which its products are multiplied: bf16, f32, ...; empty without products


class CostCounter:
    """Counts the cost of one program."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._inner = functools.lru_cache(maxsize=None)(self._arithmetic_of)
        #: Number of loops with an unknown trip count; each counts as one iteration.
        self.unknown_loops = 0
        #: Number of kernels with an unknown cost; each counts as zero.
        self.unknown_kernels = 0

    def operations(self) -> list[CostedOp]:
        """Return the instructions that run, with loops and calls flattened."""
        found: list[CostedOp] = []
        self._walk(self.module.entry, 1.0, found)
        return found

    def _walk(self, computation: HloComputation, times: float, found: list[CostedOp]) -> None:
        for instruction in computation.instructions.values():
            if instruction.opcode in _CALLS:
                self._walk_called(instruction, computation, times, found)
            elif not _is_free(instruction.opcode):
                cost = self._arithmetic(instruction, computation)
                self.unknown_kernels += flop_counts.is_pallas_kernel(instruction) and not cost.products
                cost.read, cost.written = self._traffic(instruction, computation)
                precise = _matmul_precision(self.module, instruction, computation)
                found.append(CostedOp(instruction, computation, times, cost, precise))

    def _walk_called(
        self, instruction: HloInstruction, home: HloComputation, times: float, found: list[CostedOp]
    ) -> None:
        called = self.module.called(instruction)
        if instruction.opcode == "while":
            times *= self._rounds(instruction, home)
        if instruction.opcode == "conditional":  # count the most expensive branch
            branches: list[list[CostedOp]] = []
            for branch in called:
                branches.append([])
                self._walk(branch, times, branches[-1])
            most_expensive: list[CostedOp] = max(branches, key=_flops, default=[])
            found += most_expensive
            return
        for computation in called:
            self._walk(computation, times, found)

    def _rounds(self, loop: HloInstruction, home: HloComputation) -> int:
        found = loop.trip_count or _limit(self.module, home, loop)
        if found is None:
            self.unknown_loops += 1
        return found or 1

    def _arithmetic_of(self, name: str) -> OpCost:
        """Return the cost of one call of a computation."""
        total = OpCost()
        computation = self.module.computations[name]
        for instruction in computation.instructions.values():
            total.add(self._arithmetic(instruction, computation))
        return total

    def _arithmetic(self, instruction: HloInstruction, computation: HloComputation) -> OpCost:
        opcode, operands = instruction.opcode, computation.operands(instruction)
        out = float(sum(shape.elements for shape in instruction.shapes))
        if opcode in ("fusion", "call", "async-start"):
            total = OpCost()
            for called in self.module.called(instruction):
                total.add(self._inner(called.name))
            return total
        if opcode == "while":
            total = OpCost()
            for called in self.module.called(instruction):
                total.add(self._inner(called.name), self._rounds(instruction, computation))
            return total
        products = flop_counts.multiply_add_count(instruction, [o.shapes[0] for o in operands if o.shapes])
        if products is not None:
            return OpCost(products=products)
        if opcode in ("reduce", "all-reduce", "all-reduce-start", "reduce-scatter"):
            return OpCost(other=float(sum(o.shapes[0].elements for o in operands if o.shapes)))
        if opcode == "reduce-window" and operands:
            return OpCost(other=flop_counts.reduced_element_count(instruction, operands[0].shapes[0]))
        if opcode == "select-and-scatter":
            return OpCost(other=out * math.prod(flop_counts.parse_window(instruction).size or (1,)))
        moves = opcode in _MOVES or opcode.endswith("-start")
        return OpCost() if moves or _is_free(opcode) else OpCost(other=out)

    def _traffic(self, instruction: HloInstruction, computation: HloComputation) -> tuple[float, float]:
        """Return the bytes (read, written) of HBM."""
        operands = computation.operands(instruction)
        outs = [shape for shape in instruction.shapes if shape.in_hbm]
        if instruction.opcode in ("slice-start", "dynamic-slice-start") and len(instruction.shapes) > 1:
            source, target = instruction.shapes[:2]  # followed by a context
            return (float(target.bytes) if source.in_hbm else 0.0), (float(target.bytes) if target.in_hbm else 0.0)
        if instruction.opcode == "copy-start":  # (destination, source, context)
            target, source = instruction.shapes[0], instruction.shapes[1]
            return (source.bytes if source.in_hbm else 0.0), (target.bytes if target.in_hbm else 0.0)
        if instruction.opcode in _SLICES and operands:
            taken = sum(shape.bytes for shape in instruction.shapes)
            return (float(taken) if operands[0].shapes[0].in_hbm else 0.0), float(sum(s.bytes for s in outs))
        if instruction.opcode in ("dynamic-update-slice", "scatter") and len(operands) > 1:
            update = operands[-1 if instruction.opcode == "scatter" else 1].shapes[0].bytes
            return float(update), float(update if outs else 0)
        if instruction.opcode == "fusion":
            return self._fusion_traffic(instruction, operands, outs)
        read = sum(s.bytes for o in operands for s in o.shapes[:1] if s.in_hbm)
        return float(read), float(sum(s.bytes for s in outs))

    def _fusion_traffic(
        self, instruction: HloInstruction, operands: list[HloInstruction], outs: list[HloShape]
    ) -> tuple[float, float]:
        inside = self.module.called(instruction)
        if not inside:
            return float(sum(o.shapes[0].bytes for o in operands)), float(sum(s.bytes for s in outs))
        body = inside[0]
        parameters, passing = _parameters(body), _async_collective_operands(body)
        read = 0.0
        for number, operand in enumerate(operands):
            shape = operand.shapes[0] if operand.shapes else None
            if shape is None or not shape.in_hbm or number in parameters and parameters[number].name in passing:
                continue
            taken = _fusion_operand_bytes(body, parameters[number]) if number in parameters else None
            read += shape.bytes if taken is None else min(taken, shape.bytes)
        root = body.instructions.get(body.root)
        if root is not None and passing:
            results = root.operands if root.opcode == "tuple" else (root.name,)
            outs = [s for s, name in zip(instruction.shapes, results, strict=False) if s.in_hbm and name not in passing]
        written = float(sum(s.bytes for s in outs))
        if root is not None and root.opcode == "dynamic-update-slice" and outs:
            written = float(body.operands(root)[1].shapes[0].bytes)
        return read, written


def _is_free(opcode: str) -> bool:
    return opcode in _FREE or opcode.endswith("-done")


def _flops(operations: list[CostedOp]) -> float:
    return sum(operation.times * operation.cost.flops for operation in operations)


def _parameters(body: HloComputation) -> dict[int, HloInstruction]:
    found: dict[int, HloInstruction] = {}
    for instruction in body.instructions.values():
        if instruction.opcode == "parameter":
            found[int(instruction.literal)] = instruction
    return found


def _async_collective_operands(body: HloComputation) -> set[str]:
    """Return the names in a fusion of operands of an asynchronous collective that an earlier fusion started.

    On TPUs such a collective overlaps with several fusions. Its bytes count for the fusion that starts it.
    """
    names: set[str] = set()
    for instruction in body.instructions.values():
        target = instruction.attribute("custom_call_target") or ""
        if target.strip('"').startswith("AsyncCollective") and "AsyncCollectiveStart" not in target:
            names |= {instruction.name, *instruction.operands}
        elif instruction.opcode == "get-tuple-element" and instruction.operands[0] in names:
            names.add(instruction.name)
    return names


def _fusion_operand_bytes(body: HloComputation, parameter: HloInstruction) -> float | None:
    """Return the bytes of an operand that a fusion reads if it only slices it or updates it in place, else None."""
    taken = 0.0
    for user in body.instructions.values():
        if parameter.name not in user.operands:
            continue
        if user.opcode in _SLICES and user.operands[0] == parameter.name:
            taken += sum(shape.bytes for shape in user.shapes)
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != parameter.name:
            return None
    return taken


def _limit(module: HloModule, home: HloComputation, loop: HloInstruction) -> int | None:
    """Return the trip count of a loop that counts up to a constant, from its condition, start value and body.

    The TPU compiler splits the comparison of a 64-bit counter into two comparisons with 0 and one with the constant;
    only the last one compares the carried counter.
    """
    condition, body = (_part(module, loop, name) for name in ("condition", "body"))
    if condition is None or body is None:
        return None
    limits = []
    for instruction in condition.instructions.values():
        if instruction.opcode == "compare" and instruction.attribute("direction") == "LT":
            counter, limit = condition.operands(instruction)
            if counter.opcode == "get-tuple-element" and limit.opcode == "constant" and limit.literal.isdigit():
                limits.append((int(counter.attribute("index") or 0), int(limit.literal)))
    if len(limits) != 1:
        return None
    ((place, most),) = limits
    start = _constant(home, _element(home, home.instructions.get(loop.operands[0]), place)) or 0
    return -(-(most - start) // _step(body, place))


def _part(module: HloModule, loop: HloInstruction, name: str) -> HloComputation | None:
    found = re.search(rf"\b{name}=%?([\w.\-]+)", loop.attributes)
    return module.computations.get(found[1]) if found else None


def _element(home: HloComputation, value: HloInstruction | None, place: int) -> HloInstruction | None:
    """Return an element of a tuple, skipping copies."""
    if value is None or value.opcode != "tuple":
        return None
    found = home.instructions.get(value.operands[place])
    while found is not None and found.opcode in ("copy", "bitcast") and found.operands:
        found = home.instructions.get(found.operands[0])
    return found


def _constant(home: HloComputation, value: HloInstruction | None) -> int | None:
    is_number = value is not None and value.opcode == "constant" and value.literal.isdigit()
    return int(value.literal) if value is not None and is_number else None


def _step(body: HloComputation, place: int) -> int:
    """Return the increment per iteration of the counter at a tuple index; 1 if the body does not show it."""
    total, value = 0, _element(body, body.instructions.get(body.root), place)
    while value is not None and value.opcode == "add":  # an unrolled loop has several increments
        values = body.operands(value)
        total += next((n for n in (_constant(body, v) for v in values) if n is not None), 0)
        value = next((v for v in values if not v.literal), None)
    return max(1, total)


def _matmul_precision(module: HloModule, instruction: HloInstruction, computation: HloComputation) -> str:
    """Return the dtype of an instruction's products, with the requested precision: bf16, f32, f32:highest."""
    for found, home in _with_inner(module, instruction, computation):
        operands = home.operands(found)
        if found.opcode in ("dot", "convolution", "custom-call") and operands and operands[0].shapes:
            dtype = operands[0].shapes[0].dtype
            wanted = re.search(r"operand_precision=\{(\w+)", found.attributes)
            return f"{dtype}:{wanted[1]}" if wanted and dtype == "f32" else dtype
    return ""


def _with_inner(
    module: HloModule, instruction: HloInstruction, computation: HloComputation
) -> list[tuple[HloInstruction, HloComputation]]:
    if instruction.opcode != "fusion":
        return [(instruction, computation)]
    found = []
    for called in module.called(instruction):
        for inner in called.instructions.values():
            found += _with_inner(module, inner, called)
    return found
