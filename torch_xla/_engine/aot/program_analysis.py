"""Analyzes a compiled program: memory use of a chip, cost, a roofline estimate of its time, expensive operations.

Times are estimates from the chip's published specifications. The time of an operation is the larger of its products at
the peak rate of their dtype and its bytes at the HBM bandwidth; the time of a collective is that of its bytes on the
links. The time of a program is the sum, as if nothing overlapped and each operation ran at its limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch_xla._engine.aot import collective_costs, cost_model, hlo_parser, module_costs
from torch_xla._engine.aot.collective_costs import CollectiveCost
from torch_xla._engine.aot.cost_model import CostedOp
from torch_xla._engine.aot.hardware_specs import ChipSpec
from torch_xla._engine.aot.hlo_parser import HloShape
from torch_xla._engine.aot.module_costs import ModuleCost
from torch_xla._engine.aot.target_compiler import CompiledTargetProgram

#: Number of bfloat16 passes of a float32 matmul on a TPU, by precision.
_PASSES = {"f32:high": 3, "f32:highest": 6}
#: Share of a program's time below which an operation is not listed.
_WORTH_NAMING = 0.005
_LEAF = re.compile(r"leaves\[(\d+)\]")
_SCOPE = re.compile(r"^jit\(\w+\)/|^graph/")
_INSIDE = "/closed_call/"


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Memory use in bytes of one chip. ``aliased``: outputs that reuse argument buffers; ``padding``: of arguments."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    peak: int
    padding: int


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """The cost of one run on one chip. ``seconds`` is an estimate; ``utilisation`` is the best share of the peak."""

    products: float
    flops: float
    bytes: float
    seconds: float
    utilisation: float
    unknown_loops: int = 0
    unknown_kernels: int = 0

    @property
    def intensity(self) -> float:
        """Floating point operations per byte of HBM traffic (arithmetic intensity)."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, slots=True)
class TimeParts:
    """The estimated seconds of one run, by the resource that bounds each operation. They add up to its time."""

    compute: float
    memory: float
    collectives: float


@dataclass(frozen=True, slots=True)
class ExpensiveOp:
    """An operation, the estimated seconds of all its executions, its source location, and its cost."""

    seconds: float
    products: float
    bytes: float
    times: float
    name: str  # name of the HLO instruction
    op: str  # ATen operator, preceded by the module path if known
    line: str


@dataclass(frozen=True, slots=True)
class LargeBuffer:
    """A large buffer, and the source location of its value."""

    bytes: int
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class ProgramAnalysis:
    """Memory use, cost, collectives, expensive operations, modules and large buffers of a compiled program."""

    memory: MemoryUsage
    work: ProgramCost
    parts: TimeParts
    collectives: tuple[CollectiveCost, ...]
    expensive: tuple[ExpensiveOp, ...]
    modules: tuple[ModuleCost, ...]
    largest: tuple[LargeBuffer, ...]


def analyze_program(compiled: CompiledTargetProgram, most: int = 10) -> ProgramAnalysis:
    """Analyze a compiled program; list at most ``most`` expensive operations and large buffers."""
    target = compiled.lowered.target
    module = hlo_parser.parse_hlo(compiled.stage.as_text() or "")
    counter = cost_model.CostCounter(module)
    operations = counter.operations()
    chips = compiled.lowered.chips
    found = collective_costs.collectives_per_op(operations, module, chips)
    collectives = collective_costs.summarize_collectives(operations, found, target.chip)
    parts = [_time_parts(*pair, target.chip) for pair in zip(operations, found, strict=True)]
    timed = [(sum(pair[0]), pair[1]) for pair in zip(parts, operations, strict=True)]
    return ProgramAnalysis(
        _memory_usage(compiled, module),
        _work(timed, target.chip, counter),
        TimeParts(*(sum(part[i] for part in parts) for i in range(3))),
        collectives,
        tuple(_expensive(timed)[:most]),
        module_costs.summarize_modules(_costs_by_scope(timed)),
        tuple(_largest(module)[:most]),
    )


def _memory_usage(compiled: CompiledTargetProgram, module: hlo_parser.HloModule) -> MemoryUsage:
    stats: Any = compiled.stage.memory_analysis()
    parameters = [i.shapes[0] for i in module.entry.instructions.values() if i.opcode == "parameter" and i.shapes]
    padding = sum(shape.padded_bytes - shape.bytes for shape in parameters)
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    total = arguments + outputs + stats.temp_size_in_bytes - stats.alias_size_in_bytes
    return MemoryUsage(
        arguments=arguments,
        outputs=outputs,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        peak=max(getattr(stats, "peak_memory_in_bytes", 0), total),
        padding=padding,
    )


def _work(timed: Sequence[tuple[float, CostedOp]], chip: ChipSpec, counter: cost_model.CostCounter) -> ProgramCost:
    total = cost_model.OpCost()
    for _, operation in timed:
        total.add(operation.cost, operation.times)
    seconds = sum(time for time, _ in timed)
    utilisation = total.products / chip.flops["bf16"] / seconds if seconds else 0.0
    unknown = counter.unknown_loops, counter.unknown_kernels
    return ProgramCost(total.products, total.flops, total.bytes, seconds, utilisation, *unknown)


def _time_parts(
    operation: CostedOp, found: Sequence[collective_costs.Collective], chip: ChipSpec
) -> tuple[float, float, float]:
    """Estimate the seconds of all executions of an operation that compute, memory and links bound."""
    links = sum(collective_costs.estimate_link_seconds(kind, size, group, chip) for kind, group, size in found)
    if found and not operation.cost.products:
        return 0.0, 0.0, operation.times * links
    rate, passes = peak_throughput(chip, operation.precise)
    compute, memory = operation.cost.products * passes / rate, operation.cost.bytes / chip.hbm_bandwidth
    if compute >= memory:
        return operation.times * compute, 0.0, operation.times * links
    return 0.0, operation.times * memory, operation.times * links


def peak_throughput(chip: ChipSpec, precise: str) -> tuple[float, int]:
    """Return (products per second, passes per product) for the dtype and precision in CostedOp.precise."""
    if "tf32" not in chip.flops:  # a TPU
        return chip.flops["bf16"], _PASSES.get(precise, 1)
    if precise.startswith("f32"):
        return chip.flops["f32" if precise.endswith(("highest", "high")) else "tf32"], 1
    if precise.startswith("f64"):
        return chip.flops["f32"] / 2, 1
    return chip.flops["bf16"], 1


def _expensive(timed: Sequence[tuple[float, CostedOp]]) -> list[ExpensiveOp]:
    found: list[ExpensiveOp] = []
    total = sum(seconds for seconds, _ in timed)
    for seconds, operation in sorted(timed, key=lambda pair: -pair[0]):
        if seconds <= 0 or (found and seconds < _WORTH_NAMING * total):
            break
        instruction, times, cost = operation.instruction, operation.times, operation.cost
        op, line = _origin(operation), instruction.source
        found.append(ExpensiveOp(seconds, times * cost.products, times * cost.bytes, times, instruction.name, op, line))
    return found


def _costs_by_scope(timed: Sequence[tuple[float, CostedOp]]) -> Iterator[tuple[str, float, float, float]]:
    for seconds, operation in timed:
        times, cost = operation.times, operation.cost
        yield op_scope(operation.instruction.op_name), seconds, times * cost.flops, times * cost.bytes


def _origin(operation: CostedOp) -> str:
    """Return the scope of an operation; for one that the compiler added, its opcode and the scope of its operand."""
    found = op_scope(operation.instruction.op_name)
    if found and not found.startswith("leaves["):
        return found
    operands = operation.computation.operands(operation.instruction)
    source = _LEAF.sub(r"argument \1", op_scope(operands[0].op_name) or operands[0].name) if operands else ""
    return f"{operation.instruction.opcode.removesuffix('-start')}{source and f' of {source}'}"


def op_scope(op_name: str) -> str:
    """Return the module path and ATen operator of an instruction's op name.

    ``jit(graph)/Net/fc/aten::addmm/dot_general`` -> ``Net/fc/aten::addmm``. Inside functions that the graph calls, such
    as loops over layers, the innermost scope is used:
    ``backward/Net/torch_xla::jax_call/.../closed_call/Net/layer/aten::mm`` -> ``backward/Net/layer/aten::mm``.
    """
    path = _SCOPE.sub("", op_name)
    levels = path.split(_INSIDE)
    inner = next((level for level in reversed(levels) if "::" in level), levels[0])
    is_backward = inner is not levels[0] and path.startswith("backward/") and not inner.startswith("backward/")
    parts = [*(["backward"] if is_backward else []), *inner.split("/")]
    places = [place for place, part in enumerate(parts) if "::" in part]
    return "/".join(parts[: places[0] + 1] if places else parts)


def _largest(module: hlo_parser.HloModule) -> list[LargeBuffer]:
    """Return the temporaries and results in HBM, largest first, without the arguments."""
    found = []
    for instruction in module.entry.instructions.values():
        if instruction.opcode in ("parameter", "tuple", "get-tuple-element", "bitcast", "while", "copy-done"):
            continue
        size = sum(shape.padded_bytes for shape in instruction.shapes if shape.in_hbm)
        if size:
            what = f"{_format_shapes(instruction.shapes)} of {op_scope(instruction.op_name) or instruction.name}"
            found.append(LargeBuffer(size, what, instruction.source))
    return sorted(found, key=lambda large: -large.bytes)


def _format_shapes(shapes: Sequence[HloShape]) -> str:
    first = max(shapes, key=lambda shape: shape.bytes)
    more = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
    return f"{first.dtype}{list(first.dims)}{more}"
