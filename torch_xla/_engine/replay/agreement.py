"""Whether two recordings are of one step: what must be equal, and what becomes an input."""

from __future__ import annotations

import types
from collections.abc import Hashable, Sequence
from typing import Any

from torch_xla._engine.execution.step_closures import StepClosure
from torch_xla._engine.replay import number_inputs
from torch_xla._engine.replay.number_inputs import NumberInputs
from torch_xla._engine.replay.object_guards import is_plain
from torch_xla._engine.replay.observation import Observation
from torch_xla._engine.replay.problem import Problem
from torch_xla._engine.replay.recording import Recording


class RecordingsDiffer(Exception):
    """Two recordings are not of the same step. ``problem``: set if no later recording will agree, either."""

    def __init__(self, reason: str, problem: Problem | None = None) -> None:
        super().__init__(reason)
        self.problem = problem


def list_counted(recording: Recording) -> set[int]:
    """Return the ids of the scalars on the CPU that a recording has counted up."""
    return {id(scalar.tensor) for scalar, _ in recording.counts}


def check_agreement(old: Recording, new: Recording) -> Observation:
    """Return the observation of ``new`` if both recordings are of one step. Raises RecordingsDiffer."""
    for recording in (new, old):
        if recording.problem is not None:
            lasting = recording.problem if recording.problem.lasting else None
            raise RecordingsDiffer(recording.problem.cause, lasting)
    a, b = old.observation, new.observation
    if b is None or a is None:
        raise RecordingsDiffer(
            "it runs no program on the current device",
            Problem("it runs no program on the current device", "use it for steps that compute on the device"),
        )
    if old.key != new.key:
        raise RecordingsDiffer("the structure of the arguments changes")
    if not _same_closures(old.closures, new.closures):
        cause = "it adds a step closure that is another function in each call"
        raise RecordingsDiffer(cause, Problem(cause, "pass the tensors as args of xm.add_step_closure"))
    if a.summary["key"] != b.summary["key"]:
        raise RecordingsDiffer("it records another graph in each call")
    if a.summary != b.summary:
        raise RecordingsDiffer("it reads or writes other tensors in each call")
    if old.draws != new.draws or old.result_structure != new.result_structure:
        raise RecordingsDiffer("it draws other random numbers or returns another structure in each call")
    if not _same_places(old.places, new.places):
        raise RecordingsDiffer("it returns other values in each call")
    _check_integers(a, b)
    for x, y in zip(a.leaf_arrays, b.leaf_arrays, strict=True):
        if x is not None and x.tobytes() != y.tobytes():
            cause = "it moves other values from the CPU to the device in each call"
            raise RecordingsDiffer(cause, Problem(cause, "move them before the call, and pass them as arguments"))
    if [(id(s.tensor), added) for s, added in old.counts] != [(id(s.tensor), added) for s, added in new.counts]:
        cause = "it changes a scalar on the CPU by another amount in each call"
        raise RecordingsDiffer(cause, Problem(cause, "keep the scalar on the device (optimizers: capturable=True)"))
    return b


def _check_integers(a: Observation, b: Observation) -> None:
    seeds = set(b.described["seeds"])
    for i, (x, y) in enumerate(zip(a.described["ints"], b.described["ints"], strict=True)):
        if i not in seeds and x != y:
            cause = f"an integer of its operations changes from {x} to {y}"
            raise RecordingsDiffer(cause, Problem(cause, "pass it as a tensor on the device"))


def _same_closures(a: Sequence[StepClosure], b: Sequence[StepClosure]) -> bool:
    return len(a) == len(b) and all(
        x.run_async == y.run_async and _is_same_function(x.function, y.function) for x, y in zip(a, b, strict=True)
    )


def _is_same_function(a: Any, b: Any) -> bool:
    """Whether two functions are one, or made by one line with the same variables."""
    if isinstance(a, types.MethodType) and isinstance(b, types.MethodType):
        return a.__self__ is b.__self__ and _is_same_function(a.__func__, b.__func__)
    if a is b or not (isinstance(a, types.FunctionType) and isinstance(b, types.FunctionType)):
        return a is b
    pairs = zip(_variables_of(a), _variables_of(b), strict=True) if a.__code__ is b.__code__ else [(0, 1)]
    return all(type(x) is type(y) and (x == y if is_plain(x) else x is y) for x, y in pairs)


def _variables_of(function: types.FunctionType) -> list[Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _same_places(a: list[tuple[str, Any]], b: list[tuple[str, Any]]) -> bool:
    return len(a) == len(b) and all(
        x[0] == y[0] and (x[1] is y[1] if x[0] == "tensor" else x[1] == y[1]) for x, y in zip(a, b, strict=True)
    )


def merge_counts(old: Recording, new: Recording) -> dict[Hashable, Hashable]:
    """Return, for each step count, the one that is read for it: those with equal values in both recordings are one."""
    before = {id(scalar.tensor): scalar.before for scalar, _ in old.counts}
    first: dict[tuple[float, ...], Hashable] = {}
    found: dict[Hashable, Hashable] = {}
    for scalar, added in new.counts:
        source = ("scalar", id(scalar.tensor))
        found[source] = first.setdefault((before[id(scalar.tensor)], scalar.before, added), source)
    return found


def find_numbers(old: Recording, new: Recording) -> NumberInputs:
    """Return the numbers to compute before a launch. Raises RecordingsDiffer."""
    a, b = old.observation, new.observation
    assert a is not None
    assert b is not None
    merged = merge_counts(old, new)
    try:
        return number_inputs.find_inputs(
            a.described["floats"], b.described["floats"], (old.trace, new.trace), merged, frozenset(merged)
        )
    except number_inputs.Converted as error:
        cause = f"it converts a number that changes to an integer, a text or an object, at {error.line}"
        fix = "convert it before the call, and pass the result as an argument"
        raise RecordingsDiffer(cause, Problem(cause, fix)) from None
    except number_inputs.Unexplained as error:
        line = b.origins[error.position]
        was, now = a.described["floats"][error.position], b.described["floats"][error.position]
        cause = f"a number changes from {was:g} to {now:g}{f' at {line}' if line else ''}"
        fix = "pass it as a float argument, as a tensor on the device, or in the optimizer's param_groups"
        raise RecordingsDiffer(cause, Problem(cause, fix)) from None
