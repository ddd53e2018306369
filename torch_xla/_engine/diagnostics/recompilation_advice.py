"""What to do about a recompilation, in words, for each thing that may have changed."""

from __future__ import annotations

from collections.abc import Sequence

from torch_xla._engine.graph.graph_diff import TENSOR, ArgumentChange, LeafChange
from torch_xla._engine.graph.graph_summary import ScalarInput

PAD = (
    "Every shape is a program of its own: give all batches one size with DataLoader(..., drop_last=True), or pad the "
    "last one and mask its loss."
)
BUCKET = (
    "Every shape is a program of its own: pad to one size, or to a few (buckets), before the tensor goes to the device."
)
VALUES = (
    "The shape depends on values, which only the CPU can know: use a mask and torch.where, or torch.topk with a fixed "
    "size, so that every shape is known beforehand."
)
RANKS = (
    "Every shape is a program of its own: values of many shapes that one line reads one by one are computed by one "
    "program after torch_xla.sync()."
)
CAST = "Give the tensor one dtype before it goes to the device."
AS_TENSOR = (
    "It is a constant of the program, so every value is a program of its own: keep it as a tensor, "
    "`torch.tensor(value, device=...)`, or choose among a few values."
)
FIX = "It is a constant of the program, so every value is a program of its own: keep it the same, or among a few."
SPECIAL = (
    "0, 1 and -1 are constants of the program, other numbers are inputs of it; XLA_NO_SPECIAL_SCALARS=1 makes inputs "
    "of all, or keep the number as a tensor."
)
MOVING = "Where a part starts becomes an input of the program once it changes: any other start is this program."
TYPE = "Give it a number of the same type in every step."
SAME = "A tensor, a number and nothing make different programs: give it the same in every step."
LAYOUT = (
    "Every layout is a program of its own: mark a tensor once, before the first step, and what replaces it alike "
    "(mark_sharding)."
)
ONCE = {
    "place": "Each is a program of its own: decide on SPMD before the first step.",
    "precision": (
        "It is part of every program: call torch.set_float32_matmul_precision or "
        "torch_xla.backends.set_mat_mul_precision once, before the first step."
    ),
    "default dtype": "It is part of the program: call torch.set_default_dtype once, before the first step.",
}
WHERE = (
    "A value that reaches Python and decides what is recorded makes a program for each way: keep it as a tensor and "
    "choose with torch.where, or move the decision out of the step, after torch_xla.sync()."
)
BRANCH = (
    "The Python code took another way (an if, a loop of another length): record the same ops in every step, choose "
    "with torch.where, or move what runs only sometimes out of the step, after torch_xla.sync()."
)
CUT = "The graph is cut wherever it has grown to that size: end each step with torch_xla.sync()."
KEEP = (
    "The same ops, but other results are wanted: a tensor is kept now, or is no longer kept, when the step ends. "
    "Keep the same ones in every step, detached."
)
WIRE = "The same ops with other inputs: a tensor stands in another place, or one is now used where there were two."


def shape_advice(changes: Sequence[LeafChange]) -> str:
    """What to do about inputs of other shapes or dtypes."""
    if all(c.old[0] == c.new[0] for c in changes):
        return CAST
    if any(len(c.old[0]) != len(c.new[0]) for c in changes):
        return RANKS
    only_first = all(c.old[0][1:] == c.new[0][1:] for c in changes)
    return PAD if only_first else BUCKET


def argument_advice(change: ArgumentChange) -> str:
    """What to do about a constant that has another value."""
    values = change.old, change.new
    if TENSOR in values or None in values:
        return SAME
    if change.is_moving_start:
        return MOVING
    operands = [isinstance(value, ScalarInput) for value in values]
    if any(operands):
        return TYPE if all(operands) else SPECIAL
    numbers = all(isinstance(value, (int, float, complex)) for value in values)
    if numbers and type(change.old) is not type(change.new):
        return TYPE
    numbers = numbers and not isinstance(change.new, bool)
    if numbers and change.special:
        return SPECIAL
    return AS_TENSOR if numbers and change.may_be_tensor else FIX
