"""A program on the CPU and on xla, step by step."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.cross_feature.compare import Orders, Roundings, equal, overlaps, readable, reads_bits
from tests.fuzz.cross_feature.machine import MODES, OPERANDS, Machine, described
from tests.fuzz.cross_feature.steps import ASKS, MAKES, OUTS, VIEWS, WRITES

#: (step, part of the CPU's message): why xla may compute it, or raise with another message. "*" matches all steps.
ALLOWED: dict[tuple[str, str], str] = {
    ("*", "not implemented for"): "the CPU has no kernel for a dtype that XLA has",
    ("*", "is not supported for complex"): "the same, with another message",
    ("*", "on CPU does not support"): "the same, with another message",
    ("*", "out of bounds for dimension"): "indices are not read when an operation is recorded",
    ("cat out", "input types can't be cast to the desired output type"): "one of two faults: sizes are checked first",
    ("*", "view size is not compatible with input tensor's size and stride"): (
        "strides of operator results are unspecified on xla: views that the CPU allows must be allowed"
    ),
    ("view as complex", "Tensor must have a "): "the same",
    ("masked_scatter_", "Number of elements of source < number of ones in mask"): "values are not read either",
    ("abs out", "Found dtype"): "the CPU's kernel does not convert to a wider `out`",
    ("index select out", "self and result must have the same scalar type"): "one of two faults",
    ("index_fill_", "setStorage: sizes"): "a fault of the CPU's kernel: nothing is filled",
    ("view dtype", "self.stride(-1) must be 1 to view"): "strides of operator results are unspecified on xla",
    ("view unsigned", "self.stride(-1) must be 1 to view"): "the same",
    ("foreach add_", "fallback doesn't currently support mutable TensorLists"): "no tensor of xla is negated lazily",
    ("view as real", "view_as_real doesn't work on unresolved"): "no tensor of xla is conjugated lazily",
    ("index select", "index out of range in self"): "indices are not read when an operation is recorded",
    ("index_add_", "index out of range in self"): "the same",
    ("embedding", "index out of range in self"): "the same",
    ("take", "out of range: tried to access index"): "the same",
    ("*", "unsupported operation: more than one element of the written-to tensor refers to a single memory"): (
        "raised for expanded tensors; allowed if all elements are set to one value"
    ),
}


@dataclass
class Difference(Exception):
    """Where xla does otherwise than the CPU, and how."""

    number: int
    step: tuple[Any, ...]
    what: str

    def __str__(self) -> str:
        return f"step {self.number} {self.step}: {self.what}"


Program = list[tuple[str, int, int, int, int]]


def missing(refused: Exception | None) -> bool:
    """Whether xla says in one sentence that it does not have this."""
    said = "" if refused is None else str(refused)
    return any(
        part in said for part in ("is not supported on xla", "XLA has no complex numbers of two", "incompatible tensor")
    )


def allowed(name: str, said: str) -> bool:
    return any(step in ("*", name) and part in said for step, part in ALLOWED)


def run(program: Program) -> None:
    """Raises Difference where xla does otherwise. A step that may differ ends the program."""
    try:
        _run(program)
    except Difference:
        end = _defined_until(program)
        if end is None:
            raise
        run(program[:end])


def _defined_until(program: Program) -> int | None:
    """The step at which roundings are shown as bits: what comes of those is not defined. None if there is no such."""
    cpu, xla = Machine("cpu"), Machine("xla")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, step in enumerate(program):
            operand = cpu.any(step[2]) if step[0].startswith("view ") else None
            if operand is not None and reads_bits(cpu, xla, operand):
                return number
            _done(cpu, step)
            _done(xla, step)
            if len(cpu.pool) != len(xla.pool):
                return None
            if reads_bits(cpu, xla):
                return number
    return None


def _run(program: Program) -> None:
    cpu, xla = Machine("cpu"), Machine("xla")
    roundings, orders = Roundings(cpu), Orders(cpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, step in enumerate(program):
            written = [cpu.any(step[2]), cpu.one(step[4])]
            operands = [*written, cpu.any(step[3])]
            if step[0] in ("resize_", "as strided") and not orders.are_said(written[0]):
                return
            shared = any(map(overlaps, written))
            shapes = [x.shape for x in cpu.pool]
            expected, refusal = _done(cpu, step)
            got, refused = _done(xla, step)
            if missing(refused):
                return
            if refusal is not None and allowed(step[0], str(refusal)):
                if refused is None or "Inplace update to inference tensor" in str(refused):
                    return  # the latter is said once it has been written
                continue
            if refusal is None and step[0] in (*WRITES, *OUTS) and (shared or any(map(overlaps, written))):
                return  # what is written to one place twice is not defined, nor what a memory grows by
            _compare(number, step, (expected, refusal), (got, refused))
            roundings.step_done(operands)
            orders.step_done()
            if step[0] in OUTS and any(x.shape != shape for x, shape in zip(cpu.pool, shapes, strict=False)):
                return  # the memory of an `out` that was resized is no longer that of its views, or still is
            if any(a.shape != b.shape for a, b in zip(xla.pool, cpu.pool, strict=True)):
                if refusal is not None:
                    return  # an `out` that the CPU has resized before it saw that it does not fit
                raise Difference(number, step, "another tensor has another shape now")
        for number, (mine, theirs) in enumerate(zip(xla.pool, cpu.pool, strict=True)):
            if described(mine) != described(theirs):
                raise Difference(len(program), (number,), f"{described(mine)} on xla, {described(theirs)} on the CPU")
            if not readable(theirs):
                continue
            if not equal(mine.cpu(), theirs, roundings.of(theirs)):
                raise Difference(len(program), (number,), f"values: {mine.cpu()} on xla, {theirs} on the CPU")


def _done(machine: Machine, step: tuple[str, int, int, int, int]) -> tuple[Any, Exception | None]:
    try:
        return machine.step(step), None
    except Exception as error:
        return None, error


def _compare(number: int, step: Any, cpu: tuple[Any, Exception | None], xla: tuple[Any, Exception | None]) -> None:
    def said(outcome: tuple[Any, Exception | None]) -> str:
        error = outcome[1]
        return repr(outcome[0]) if error is None else f"{type(error).__name__}: {str(error)[:300]}"

    same = type(cpu[1]) is type(xla[1]) and (_same(cpu[0], xla[0]) if cpu[1] is None else True)
    if not same:
        raise Difference(number, step, f"\n  CPU: {said(cpu)}\n  xla: {said(xla)}")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, (float, complex)) and isinstance(b, (float, complex)):
        return equal(torch.tensor(b), torch.tensor(a), 1e-4)
    return bool(a == b)


def program(seed: int, length: int = 6) -> Program:
    """The program of a number."""
    draw = random.Random(seed)
    kinds = (VIEWS, VIEWS, WRITES, WRITES, OUTS, MAKES, MAKES, MAKES, ASKS)
    return [
        (
            draw.choice(list(draw.choice(kinds))),
            draw.randrange(len(MODES)),
            draw.randrange(OPERANDS),
            draw.randrange(OPERANDS),
            draw.randrange(48),
        )
        for _ in range(length)
    ]


def shortened(failing: Program) -> Program:
    """Without the steps that the difference does not need."""
    at = 0
    while at < len(failing):
        less = failing[:at] + failing[at + 1 :]
        try:
            run(less)
            at += 1
        except Difference:
            failing = less
    return failing
