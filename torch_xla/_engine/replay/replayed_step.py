"""A step that two recordings agree on: its guards, its inputs, and its launch.

    ReplayedStep(old, new)        the recordings agree, or RecordingsDiffer says what differs
      .mismatch(...)              what has changed since then; None if the step can be replayed
      .launch()                   one program; all tensors have their values, or text that says why not

Immutable. Owned by a ReplayedFunction. It owns references to the tensors of the step, and to the Python objects that
its guards compare.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.compat import call_state
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.diagnostics import observer, xla_errors
from torch_xla._engine.execution import value_errors
from torch_xla._engine.job import replicas
from torch_xla._engine.recorder import module_scopes
from torch_xla._engine.replay import number_inputs
from torch_xla._engine.replay.number_inputs import NumberInputs
from torch_xla._engine.replay.object_guards import is_plain
from torch_xla._engine.replay.observation import Observation
from torch_xla._engine.replay.problem import Problem
from torch_xla._engine.replay.recording import Recording
from torch_xla._engine.replay.traced_number import bits

_AMBIENT = (
    "the grad mode", "the inference mode", "autocast", "the dtype of autocast", "the cache of autocast",
    "the default dtype", "the default device", "deterministic algorithms", "anomaly detection", "the thread",
    "the current device", "the matmul precision", "the SPMD mesh", "a mode of torch", "a hook of all modules",
)  # fmt: skip


def ambient_state() -> tuple[Hashable, ...]:
    """Return the state outside of arguments and objects that decides what a step records, as named by _AMBIENT."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        threading.get_ident(),
        recorder.bindings().current_device(),
        matmul_precision.current_precision(),
        replicas.is_spmd(),
        call_state.active_modes(),
        call_state.global_hooks() - module_scopes.hook_count(),
    )


def ambient_difference(a: tuple[Hashable, ...], b: tuple[Hashable, ...]) -> str | None:
    """Return what differs between two states, in words."""
    return next((name for name, x, y in zip(_AMBIENT, a, b, strict=True) if x != y), None)


class RecordingsDiffer(Exception):
    """Two recordings are not of the same step. ``problem``: set if no later recording will agree, either."""

    def __init__(self, reason: str, problem: Problem | None = None) -> None:
        super().__init__(reason)
        self.problem = problem


@dataclass
class _Graph:
    """What diagnostics ask of a graph, after it is gone."""

    key: bytes
    node_count: int
    leaf_shapes: Any
    root_count: int


class _Run:
    """What diagnostics ask of a GraphRun."""

    site: tuple[int, str, str] | None = None

    def __init__(self, graph: _Graph, device: int) -> None:
        self.graph, self.device = graph, device


class ReplayedStep:
    """A step that can be replayed."""

    def __init__(self, old: Recording, new: Recording, ambient: tuple[Hashable, ...]) -> None:
        """Compare two recordings. Raises RecordingsDiffer."""
        seen = _check_agreement(old, new)
        self.device, self._ambient, self._structure = new.device, ambient, new.structure
        self._native, self._program, self._checked = seen.native, seen.program, seen.checked
        self._graph = _Graph(**{name: seen.summary[name] for name in _Graph.__dataclass_fields__})
        passed = {id(tensor) for tensor in new.tensors}
        self._leaves = [None if id(leaf) in passed else (type(leaf), leaf) for leaf in new.leaves]
        self._passed = [i for i, leaf in enumerate(new.leaves) if id(leaf) in passed]
        self._result_structure, self._results = new.result_structure, new.places
        self._numbers = _find_numbers(old, new)
        self._constants = [
            (t, t._version) for key, (t, _) in new.walk.host_tensors.items() if key not in _list_counted(new)
        ]
        groups = [id(group) for _, optimizer in new.walk.optimizers for group in optimizer.param_groups]
        self._groups = {id(group): group for _, optimizer in new.walk.optimizers for group in optimizer.param_groups}
        varying = set(self._numbers.varying)
        self.guards = new.walk.guards.without(
            lambda holder, key: id(holder) in groups and ("group", id(holder), key) in varying
        )
        self._set_counts(old, new)

    def _set_counts(self, old: Recording, new: Recording) -> None:
        merged = _merge_counts(old, new)
        order: dict[Hashable, int] = {}
        numbers = [order.setdefault(merged["scalar", id(scalar.tensor)], len(order)) for scalar, _ in new.counts]
        self._group_of = order
        self._native.set_counts([s.tensor for s, _ in new.counts], [added for _, added in new.counts], numbers)

    def mismatch(self, leaves: Sequence[Any], structure: Any, ambient: tuple[Hashable, ...]) -> str | None:
        """Return what differs from the recorded calls, in words; None if the step can be replayed."""
        if structure != self._structure:
            return "the structure of the arguments"
        if ambient != self._ambient:
            return ambient_difference(ambient, self._ambient)
        tensors = []
        for i, (leaf, expected) in enumerate(zip(leaves, self._leaves, strict=True)):
            if expected is None:
                if not isinstance(leaf, torch.Tensor):
                    return f"the type of argument {i}"
                tensors.append(leaf)
            elif not self._is_same(i, leaf, *expected):
                return f"argument {i}"
        for tensor, version in self._constants:
            if tensor._version != version:
                return "a tensor on the CPU"
        return self._native.check(tensors) or self.guards.failed()

    def _is_same(self, position: int, leaf: Any, kind: type, value: Any) -> bool:
        if type(leaf) is not kind:
            return False
        if isinstance(leaf, float) and ("argument", position) in self._numbers.varying:
            return True
        if isinstance(leaf, float):
            return bits(leaf) == bits(value)
        return bool(leaf == value) if is_plain(value) else leaf is value

    def launch(self, leaves: Sequence[Any]) -> tuple[str | None, Any]:
        """Launch the program under the execution lock. Return (why it cannot be launched or None, the result)."""
        numbers = self._current_numbers(leaves)
        if numbers is None:
            return "numbers that the step branches on, or step counts that were equal", None
        tensors = [leaves[i] for i in self._passed]
        program, run = self._program, _Run(self._graph, self.device)
        if program.handlers is not None:
            program.handlers.set_thread_count()
        record = observer.begin_execution(run, program.work)  # type: ignore[arg-type]
        try:
            with record.span:
                launched = self._native.launch(tensors, numbers)
        except jax.errors.JaxRuntimeError as error:
            message = f"running {program.outline}"
            raise xla_errors.translate_xla_error(error, message, self.device, program.outline) from error
        if isinstance(launched, str):
            return launched, None
        made, arrays, token = launched
        if program.checked is not None:
            *arrays, row = arrays
            value_errors.note_launch(run, row, self._checked)  # type: ignore[arg-type]
        record.launched(arrays, token)
        results = [
            made[where] if kind == "result" else tensors[where] if kind == "argument" else where
            for kind, where in self._results
        ]
        return None, jax.tree_util.tree_unflatten(self._result_structure, results)

    def _current_numbers(self, leaves: Sequence[Any]) -> list[tuple[int, float]] | None:
        inputs: NumberInputs = self._numbers
        scalars = self._native.group_values()
        if scalars is None:
            return None
        values = []
        for source in inputs.varying:
            kind = source[0]  # type: ignore[index]
            if kind == "argument":
                value = leaves[source[1]]  # type: ignore[index]
            elif kind == "group":
                value = self._groups[source[1]].get(source[2])  # type: ignore[index]
            else:
                value = scalars[self._group_of[source]]
            if type(value) is not float:
                return None
            values.append(value)
        return inputs.compute(values)


def _list_counted(recording: Recording) -> set[int]:
    return {id(scalar.tensor) for scalar, _ in recording.counts}


def _check_agreement(old: Recording, new: Recording) -> Observation:
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
    if old.structure != new.structure:
        raise RecordingsDiffer("the structure of the arguments changes")
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


def _same_places(a: list[tuple[str, Any]], b: list[tuple[str, Any]]) -> bool:
    return len(a) == len(b) and all(
        x[0] == y[0] and (x[1] is y[1] if x[0] == "tensor" else x[1] == y[1]) for x, y in zip(a, b, strict=True)
    )


def _merge_counts(old: Recording, new: Recording) -> dict[Hashable, Hashable]:
    """Return, for each step count, the one that is read for it: those with equal values in both recordings are one."""
    before = {id(scalar.tensor): scalar.before for scalar, _ in old.counts}
    first: dict[tuple[float, ...], Hashable] = {}
    found: dict[Hashable, Hashable] = {}
    for scalar, added in new.counts:
        source = ("scalar", id(scalar.tensor))
        found[source] = first.setdefault((before[id(scalar.tensor)], scalar.before, added), source)
    return found


def _find_numbers(old: Recording, new: Recording) -> NumberInputs:
    a, b = old.observation, new.observation
    assert a is not None
    assert b is not None
    merged = _merge_counts(old, new)
    try:
        return number_inputs.find_inputs(
            a.described["floats"], b.described["floats"], (old.trace, new.trace), merged, frozenset(merged)
        )
    except number_inputs.Unexplained as error:
        line = b.origins[error.position]
        was, now = a.described["floats"][error.position], b.described["floats"][error.position]
        cause = f"a number changes from {was:g} to {now:g}{f' at {line}' if line else ''}"
        fix = "pass it as a float argument, as a tensor on the device, or in the optimizer's param_groups"
        raise RecordingsDiffer(cause, Problem(cause, fix)) from None
