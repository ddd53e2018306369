"""Choose the advice for a recompilation, for each kind of change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch_xla._engine.graph.graph_diff import GETITEM, TENSOR, ArgumentChange, LeafChange
from torch_xla._engine.graph.graph_summary import ScalarInput


class Advice(NamedTuple):
    """Why a change needs another program (the end of the cause; may be empty), and what to do."""

    why: str
    fix: str


_SHAPES = "every new shape compiles a new program"
PAD = Advice(
    _SHAPES,
    "keep all batches the same size with DataLoader(..., drop_last=True), or pad the last batch and mask its loss",
)
BUCKET = Advice(_SHAPES, "pad to one size, or to a few (buckets), before the tensor goes to the device")
VALUES = Advice(
    "the shape depends on values, which only the CPU knows",
    "use a mask and torch.where, or torch.topk with a fixed size, so that all shapes are static",
)
RANKS = Advice(
    _SHAPES,
    "to read values of many shapes at one line, call torch_xla.sync() first, which computes all with one program",
)
CAST = Advice("", "convert the tensor to one dtype before it goes to the device")
_CONSTANT = "it is a constant of the program, so every new value compiles a new program"
AS_TENSOR = Advice(_CONSTANT, "keep it as a tensor, `torch.tensor(value, device=...)`, or use only a few values")
FIX = Advice(_CONSTANT, "keep it the same, or use a few values")
SPECIAL = Advice(
    "0, 1 and -1 are constants of the program, other numbers are program inputs",
    "set XLA_NO_SPECIAL_SCALARS=1 to make all numbers inputs, or keep the number as a tensor",
)
MOVING = Advice(
    "a slice start or index becomes a program input when it changes", "none needed: other values use this program"
)
TYPE = Advice("", "pass a number of the same type in every step")
SAME = Advice(
    "a tensor, a number and an omitted argument compile different programs", "pass the same kind in every step"
)
LAYOUT = Advice(
    "every new sharding compiles a new program",
    "call mark_sharding once, before the first step, and give the same sharding to tensors that replace annotated ones",
)
ONCE = {
    "place": Advice("every placement compiles a new program", "enable SPMD before the first step"),
    "precision": Advice(
        "the precision is part of every program",
        "call torch.set_float32_matmul_precision or torch_xla.backends.set_mat_mul_precision once, before the first "
        "step",
    ),
    "default dtype": Advice("it is part of the program", "call torch.set_default_dtype once, before the first step"),
}
WHERE = Advice(
    "control flow that depends on a value compiles a program for each branch",
    "keep the value as a tensor and select with torch.where, or move the decision out of the step, after "
    "torch_xla.sync()",
)
BRANCH = Advice(
    "the Python code took another branch (an if, a loop of another length)",
    "record the same ops in every step, select with torch.where, or move ops that only some steps run out of the step, "
    "after torch_xla.sync()",
)
CUT = Advice("the graph is run whenever it reaches that size", "end each step with torch_xla.sync()")
KEEP = Advice(
    "the ops are the same, but a tensor is now alive, or no longer alive, at the end of the step",
    "keep the same tensors alive in every step, detached",
)
WIRE = Advice(
    "the ops are the same but their inputs are connected differently: a tensor moved to another argument, or one "
    "tensor is used where two were",
    "use the same tensors in the same places in every step",
)
EVICTED = Advice("", "raise XLA_COMPILATION_CACHE_SIZE, the number of cached programs")
REPORT = Advice("", "please report this as a torch_xla bug")


ELEMENTS = Advice(
    "every result that is read separately compiles a new program",
    "read all of them in one call, .tolist() or .cpu(), instead of one by one",
)


def shape_advice(changes: Sequence[LeafChange]) -> Advice:
    """Return the advice for inputs whose shape or dtype changed."""
    if all(c.old[0] == c.new[0] for c in changes):
        return CAST
    if any(len(c.old[0]) != len(c.new[0]) for c in changes):
        return RANKS
    only_first = all(c.old[0][1:] == c.new[0][1:] for c in changes)
    return PAD if only_first else BUCKET


def argument_advice(change: ArgumentChange) -> Advice:
    """Return the advice for a constant argument whose value changed."""
    values = change.old, change.new
    if change.type == GETITEM:
        return ELEMENTS
    if TENSOR in values or None in values:
        return SAME
    if change.is_moving_start:
        return MOVING
    scalar_inputs = [isinstance(value, ScalarInput) for value in values]
    if any(scalar_inputs):
        return TYPE if all(scalar_inputs) else SPECIAL
    numbers = all(isinstance(value, (int, float, complex)) for value in values)
    if numbers and type(change.old) is not type(change.new):
        return TYPE
    numbers = numbers and not isinstance(change.new, bool)
    if numbers and change.special:
        return SPECIAL
    return AS_TENSOR if numbers and change.may_be_tensor else FIX
