"""Choose the advice for a recompilation, for each kind of change."""

from __future__ import annotations

from collections.abc import Sequence

from torch_xla._engine.graph.graph_diff import TENSOR, ArgumentChange, LeafChange
from torch_xla._engine.graph.graph_summary import ScalarInput

PAD = (
    "Every new shape compiles a new program: keep all batches the same size with DataLoader(..., drop_last=True), or "
    "pad the last batch and mask its loss."
)
BUCKET = (
    "Every new shape compiles a new program: pad to one size, or to a few (buckets), before the tensor goes to the "
    "device."
)
VALUES = (
    "The shape depends on values, which only the CPU knows: use a mask and torch.where, or torch.topk with a fixed "
    "size, so that all shapes are static."
)
RANKS = (
    "Every new shape compiles a new program: to read values of many shapes at one line, call torch_xla.sync() first, "
    "which computes all of them with one program."
)
CAST = "Convert the tensor to one dtype before it goes to the device."
AS_TENSOR = (
    "It is a constant of the program, so every new value compiles a new program: keep it as a tensor, "
    "`torch.tensor(value, device=...)`, or use only a few values."
)
FIX = (
    "It is a constant of the program, so every new value compiles a new program: keep it the same, or use a few values."
)
SPECIAL = (
    "0, 1 and -1 are constants of the program, other numbers are program inputs: set XLA_NO_SPECIAL_SCALARS=1 to make "
    "all numbers inputs, or keep the number as a tensor."
)
MOVING = "A slice start or index becomes a program input when it changes: further values use this program."
TYPE = "Pass a number of the same type in every step."
SAME = "A tensor, a number and an omitted argument compile different programs: pass the same kind in every step."
LAYOUT = (
    "Every new sharding compiles a new program: call mark_sharding once, before the first step, and give the same "
    "sharding to tensors that replace the annotated ones."
)
ONCE = {
    "place": "Every placement compiles a new program: enable SPMD before the first step.",
    "precision": (
        "It is part of every program: call torch.set_float32_matmul_precision or "
        "torch_xla.backends.set_mat_mul_precision once, before the first step."
    ),
    "default dtype": "It is part of the program: call torch.set_default_dtype once, before the first step.",
}
WHERE = (
    "Control flow that depends on a value compiles a program for each branch: keep the value as a tensor and select "
    "with torch.where, or move the decision out of the step, after torch_xla.sync()."
)
BRANCH = (
    "The Python code took another branch (an if, a loop of another length): record the same ops in every step, select "
    "with torch.where, or move ops that only some steps run out of the step, after torch_xla.sync()."
)
CUT = "The graph is flushed whenever it reaches that size: end each step with torch_xla.sync()."
KEEP = (
    "The ops are the same but the results differ: a tensor is now alive, or no longer alive, at the end of the step. "
    "Keep the same tensors alive in every step, detached."
)
WIRE = (
    "The ops are the same but their inputs are connected differently: a tensor moved to another argument, or one "
    "tensor is used where two were."
)


def shape_advice(changes: Sequence[LeafChange]) -> str:
    """Return the advice for inputs whose shape or dtype changed."""
    if all(c.old[0] == c.new[0] for c in changes):
        return CAST
    if any(len(c.old[0]) != len(c.new[0]) for c in changes):
        return RANKS
    only_first = all(c.old[0][1:] == c.new[0][1:] for c in changes)
    return PAD if only_first else BUCKET


def argument_advice(change: ArgumentChange) -> str:
    """Return the advice for a constant argument whose value changed."""
    values = change.old, change.new
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
