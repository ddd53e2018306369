"""Finds the collectives of a compiled program: bytes, group sizes, and a lower bound of the time on the links."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_xla._engine.aot.cost_model import CostedOp
from torch_xla._engine.aot.hardware_specs import ChipSpec
from torch_xla._engine.aot.hlo_parser import HloInstruction, HloModule

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The collectives of one kind and group size. ``bytes`` is the total size of their results on one chip."""

    kind: str
    group: int
    count: float
    bytes: float
    seconds: float  # estimate for a ring algorithm that uses all links of a chip


#: One collective of an operation: (kind, group size, bytes).
Collective = tuple[str, int, float]


def collectives_per_op(operations: Sequence[CostedOp], module: HloModule, chips: int) -> list[list[Collective]]:
    """Return for each operation of a program on ``chips`` chips the collectives that it is or that are fused into it.

    An asynchronous collective that overlaps with several fusions, as on TPUs, belongs to the fusion that starts it.
    """
    begun: set[str] = set()
    return [list(_collective_cost(operation.instruction, module, chips, begun)) for operation in operations]


def summarize_collectives(
    operations: Sequence[CostedOp], collectives: Sequence[Sequence[Collective]], chip: ChipSpec
) -> tuple[CollectiveCost, ...]:
    """Aggregate the collectives of a program by kind and group size, most bytes first."""
    sums: dict[tuple[str, int], list[float]] = {}
    for operation, some in zip(operations, collectives, strict=True):
        for kind, group, size in some:
            row = sums.setdefault((kind, group), [0.0, 0.0, 0.0])
            row[0] += operation.times
            row[1] += operation.times * size
            row[2] += operation.times * estimate_link_seconds(kind, size, group, chip)
    rows = [CollectiveCost(kind, group, *row) for (kind, group), row in sums.items()]
    return tuple(sorted(rows, key=lambda collective: -collective.bytes))


def _collective_cost(
    instruction: HloInstruction, module: HloModule, chips: int, begun: set[str]
) -> Iterator[Collective]:
    kind = collective_kind(instruction)
    if kind is not None:
        yield kind, _group(instruction.attributes, chips), _bytes(instruction)
    elif instruction.opcode == "fusion":
        for called in module.called(instruction):
            for inner in called.instructions.values():
                channel = inner.attribute("channel_id")
                if collective_kind(inner) is None or channel in begun:
                    continue
                begun |= {channel} if channel else set()
                ((kind, group, size),) = _collective_cost(inner, module, chips, begun)
                if called.name.startswith("all-reduce-scatter"):  # on TPUs: its result is a shard
                    kind, size = "reduce-scatter", size / group
                yield kind, group, size


def collective_kind(instruction: HloInstruction) -> str | None:
    """Return the kind of collective of an instruction, or None if it is not a collective."""
    opcode = instruction.opcode.removesuffix("-start")
    return opcode if opcode in _KINDS else None


def _bytes(instruction: HloInstruction) -> float:
    """Return the bytes of the results: an asynchronous collective has the shapes (operands, results, contexts)."""
    shapes, count = instruction.shapes, len(instruction.operands)
    if instruction.opcode.endswith("-start") and len(shapes) >= 2 * count:  # else an all-reduce that has only results
        shapes = shapes[count : 2 * count]
    return float(sum(shape.bytes for shape in shapes))


def _group(attributes: str, chips: int) -> int:
    """Return the group size of a collective."""
    listed = re.search(r"replica_groups=\{\{([0-9,]*)\}", attributes)
    if listed:
        return len(listed[1].split(",")) if listed[1] else chips
    counted = re.search(r"replica_groups=\[(\d+),(\d+)\]", attributes)
    if counted:
        return int(counted[2])
    named = re.search(r"replica_groups=@?mesh[\w.]*\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if named:  # mesh['a'=4,'b'=2] {'a'}
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        return math.prod(sizes.get(name, 1) for name in re.findall(r"'([^']+)'", named[2]))
    return 2 if "source_target_pairs=" in attributes else chips


def link_bytes(kind: str, size: float, group: int) -> float:
    """Return the bytes that a chip sends in a ring algorithm for a collective whose result has ``size`` bytes on it."""
    if group <= 1:
        return 0.0
    around = (group - 1) / group
    return {
        "all-reduce": 2 * around * size,
        "all-gather": around * size,
        "reduce-scatter": (group - 1) * size,
        "all-to-all": around * size,
        "ragged-all-to-all": around * size,
        "collective-permute": size,
    }[kind]


def estimate_link_seconds(kind: str, size: float, group: int, chip: ChipSpec) -> float:
    """Return a lower bound of the time on the links for a collective whose result has ``size`` bytes on a chip."""
    moved = link_bytes(kind, size, group)
    return moved / chip.link_bandwidth if math.isfinite(moved) else 0.0
