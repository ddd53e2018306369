"""Parses the text of optimized HLO: computations, instructions, shapes with layouts, and source locations.

It parses only what the cost model needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch_xla._engine.compilation import hlo_metadata

_BITS = {"pred": 8, "bf16": 16, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation)=")
_NAME = re.compile(r"%([\w.\-]+)")
_TILE = re.compile(r"T((?:\([0-9,*]+\))+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SOURCE = re.compile(r'source_file=("?)([^"\n]*?)\1 source_line=(\d+)')


@dataclass(frozen=True, slots=True)
class HloShape:
    """The shape of an array: HLO's name of the dtype, dimensions, and the text of the layout (``1,0:T(8,128)S(1)``)."""

    dtype: str
    dims: tuple[int, ...]
    layout: str

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def item_bytes(self) -> float:
        """Return the bytes of an element."""
        if self.dtype in _BITS:
            return _BITS[self.dtype] / 8
        digits = re.search(r"\d+", self.dtype)
        return int(digits[0]) / 8 if digits else 0.0

    @property
    def bytes(self) -> int:
        """The size in bytes, without padding."""
        return math.ceil(self.elements * self.item_bytes)

    @property
    def padded_bytes(self) -> int:
        """The size in memory in bytes, with the minor dimensions padded to full tiles."""
        tile = _TILE.search(self.layout)
        if tile is None or not self.elements:
            return self.bytes
        sizes = [int(n) for n in tile[1].split(")")[0].strip("(").split(",") if n.isdigit()]
        order = [int(n) for n in self.layout.split(":")[0].split(",") if n]
        dims = [self.dims[axis] for axis in order] or [1]  # minor to major
        for place, size in enumerate(reversed(sizes)):
            if place < len(dims):
                dims[place] = -(-dims[place] // size) * size
            else:
                dims.append(size)
        return math.ceil(math.prod(dims) * self.item_bytes)

    @property
    def in_hbm(self) -> bool:
        """Whether the array is in HBM, not in a memory space on the chip."""
        return "S(" not in self.layout


@dataclass(slots=True, eq=False)
class HloInstruction:
    """One instruction. ``operands`` are names in its computation, ``called`` are names of computations.

    ``literal`` is the text in the parentheses of a constant (its value) or a parameter (its number).
    """

    name: str
    opcode: str
    shapes: tuple[HloShape, ...]
    operands: tuple[str, ...]
    attributes: str
    called: tuple[str, ...] = ()
    literal: str = ""

    @property
    def op_name(self) -> str:
        """The op name, e.g. ``jit(graph)/Net/fc/aten::addmm/dot_general``; empty for what the compiler added."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def source(self) -> str:
        """The source location, e.g. ``file.py:12``; empty if unknown."""
        found = _SOURCE.search(self.attributes)
        return f"{found[2]}:{found[3]}" if found else ""

    @property
    def trip_count(self) -> int | None:
        """The trip count of a loop, if the compiler annotated it."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None

    def attribute(self, name: str) -> str | None:
        """Return the text of an attribute, with or without braces, such as ``dim_labels``."""
        found = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
        return found[1] if found else None


@dataclass(slots=True, eq=False)
class HloComputation:
    """The instructions of a computation by name, in order; ``root`` names the one that computes its result."""

    name: str
    instructions: dict[str, HloInstruction] = field(default_factory=dict)
    root: str = ""

    def operands(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Return the operands of an instruction, as far as the text names them."""
        return [self.instructions[name] for name in instruction.operands if name in self.instructions]


@dataclass(slots=True, eq=False)
class HloModule:
    """The computations of a program."""

    computations: dict[str, HloComputation]
    entry: HloComputation

    def called(self, instruction: HloInstruction) -> list[HloComputation]:
        """Return the computations that an instruction calls."""
        return [self.computations[name] for name in instruction.called if name in self.computations]


def parse_hlo(text: str) -> HloModule:
    """Parse the text of an HLO module. Raises ValueError if it has no entry computation."""
    computations: dict[str, HloComputation] = {}
    entry: HloComputation | None = None
    current: HloComputation | None = None
    for line in hlo_metadata.inline_sources(text).splitlines():
        head = _COMPUTATION.match(line) if not line.startswith(" ") else None
        if head is not None:
            current = computations.setdefault(head[2], HloComputation(head[2]))
            entry = current if head[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            instruction = _instruction(found[2], line[found.end() :])
            current.instructions[instruction.name] = instruction
            if found[1]:
                current.root = instruction.name
    if entry is None:
        raise ValueError("the HLO text has no entry computation")
    return HloModule(computations, entry)


def _instruction(name: str, text: str) -> HloInstruction:
    end = _matching_bracket(text, 0) + 1 if text.startswith("(") else text.find(" ")
    shapes = tuple(_parse_shapes(text[:end]))
    rest = text[end:].lstrip()
    opening = rest.find("(")
    closing = _matching_bracket(rest, opening)
    attributes = rest[closing + 1 :].lstrip(", ")
    inside = rest[opening + 1 : closing]
    opcode = rest[:opening]
    if opcode in ("constant", "parameter"):
        return HloInstruction(name, opcode, shapes, (), attributes, literal=inside)
    return HloInstruction(
        name, opcode, shapes, tuple(_NAME.findall(inside)), attributes, tuple(_called_computations(attributes))
    )


def _matching_bracket(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return match.start()
    return len(text)


def _parse_shapes(text: str) -> Iterator[HloShape]:
    for dtype, dims, layout in _ARRAY.findall(text):
        yield HloShape(dtype, tuple(int(n) for n in re.findall(r"\d+", dims)), layout)


def _called_computations(attributes: str) -> Iterator[str]:
    for match in _CALLED.finditer(attributes):
        rest = attributes[match.end() :]
        if rest.startswith("{"):
            yield from _NAME.findall(rest[: rest.find("}")])
        elif found := _NAME.match(rest):
            yield found[1]
