"""The collectives of a compiled program: bytes, groups, and how long the links need at least."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_xla._engine.aot.chips import Chip
from torch_xla._engine.aot.costs import Operation

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")


@dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind and group size. ``bytes`` is what one chip has of the results, all of them together."""

    kind: str
    group: int
    count: float
    bytes: float
    seconds: float  # an estimate: all links of a chip at work, in the time of a ring


def of(operations: Sequence[Operation], chip: Chip, chips: int) -> tuple[Collective, ...]:
    """The collectives of a program of so many chips, most bytes first."""
    sums: dict[tuple[str, int], list[float]] = {}
    for operation in operations:
        kind = kind_of(operation)
        if kind is None:
            continue
        group = _group(operation.instruction.attributes, chips)
        size = _bytes(operation)
        row = sums.setdefault((kind, group), [0.0, 0.0, 0.0])
        row[0] += operation.times
        row[1] += operation.times * size
        row[2] += operation.times * seconds(kind, size, group, chip)
    found = [Collective(kind, group, *row) for (kind, group), row in sums.items()]
    return tuple(sorted(found, key=lambda collective: -collective.bytes))


def kind_of(operation: Operation) -> str | None:
    """The kind of collective that an operation is; None for one that is none."""
    opcode = operation.instruction.opcode.removesuffix("-start")
    return opcode if opcode in _KINDS else None


def _bytes(operation: Operation) -> float:
    instruction = operation.instruction
    shapes = instruction.shapes
    if instruction.opcode.endswith("-start") and len(shapes) > 1 and instruction.opcode != "all-reduce-start":
        # (operands, results, ...): what comes of it is the larger half of an all-gather.
        return float(max(shape.bytes for shape in shapes))
    return float(sum(shape.bytes for shape in shapes))


def _group(attributes: str, chips: int) -> int:
    """How many chips exchange values with one another."""
    listed = re.search(r"replica_groups=\{\{([0-9,]*)\}", attributes)
    if listed:
        return len(listed[1].split(",")) if listed[1] else chips
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes)
    if counted:
        return int(counted[2])
    return 2 if "source_target_pairs=" in attributes else chips


def seconds(kind: str, size: float, group: int, chip: Chip) -> float:
    """What the links need for a collective whose result has ``size`` bytes on a chip, at least."""
    if group <= 1:
        return 0.0
    around = (group - 1) / group
    moved = {
        "all-reduce": 2 * around * size,
        "all-gather": around * size,
        "reduce-scatter": (group - 1) * size,
        "all-to-all": around * size,
        "ragged-all-to-all": around * size,
        "collective-permute": size,
    }[kind]
    return moved / chip.link_bandwidth if math.isfinite(moved) else 0.0
