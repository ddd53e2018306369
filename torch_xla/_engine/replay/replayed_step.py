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
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.compat import call_state
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.diagnostics import observer, xla_errors
from torch_xla._engine.execution import step_closures, value_errors
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import watchdog
from torch_xla._engine.recorder import module_scopes
from torch_xla._engine.replay.agreement import check_agreement, find_numbers, list_counted, merge_counts
from torch_xla._engine.replay.number_inputs import NumberInputs
from torch_xla._engine.replay.object_guards import is_plain
from torch_xla._engine.replay.recording import Recording
from torch_xla._engine.replay.step_arguments import StepArguments
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
        seen = check_agreement(old, new)
        self.device, self._ambient, self._key = new.device, ambient, new.key
        self._native, self._program, self._checked = seen.native, seen.program, seen.checked
        self._graph = _Graph(**{name: seen.summary[name] for name in _Graph.__dataclass_fields__})
        passed = {id(tensor) for tensor in new.tensors}
        self._leaves = [None if id(leaf) in passed else (type(leaf), leaf) for leaf in new.leaves]
        self._passed = [i for i, leaf in enumerate(new.leaves) if id(leaf) in passed]
        self._result_structure, self._results = new.result_structure, new.places
        self._closures = [replace(closure, args=()) for closure in new.closures]
        self._numbers = find_numbers(old, new)
        self._constants = [
            (t, t._version) for key, (t, _) in new.walk.host_tensors.items() if key not in list_counted(new)
        ]
        groups = [id(group) for _, optimizer in new.walk.optimizers for group in optimizer.param_groups]
        self._groups = {id(group): group for _, optimizer in new.walk.optimizers for group in optimizer.param_groups}
        varying = set(self._numbers.varying)
        self.guards = new.walk.guards.without(
            lambda holder, key: id(holder) in groups and ("group", id(holder), key) in varying
        )
        self._set_counts(old, new)
        seen.use_buckets()

    def _set_counts(self, old: Recording, new: Recording) -> None:
        merged = merge_counts(old, new)
        order: dict[Hashable, int] = {}
        numbers = [order.setdefault(merged["scalar", id(scalar.tensor)], len(order)) for scalar, _ in new.counts]
        self._group_of = order
        self._native.set_counts([s.tensor for s, _ in new.counts], [added for _, added in new.counts], numbers)

    def mismatch(self, arguments: StepArguments, ambient: tuple[Hashable, ...]) -> str | None:
        """Return what differs from the recorded calls, in words; None if the step can be replayed."""
        if arguments.key != self._key:
            return "the structure of the arguments, or which of them are on the CPU"
        if ambient != self._ambient:
            return ambient_difference(ambient, self._ambient)
        arguments.upload()
        leaves = arguments.leaves
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
        group = program.placement.group
        if group is not None:
            watchdog.on_launch(program.exchanges, group)
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
            value_errors.note_launch(run, arrays, row, self._checked)  # type: ignore[arg-type]
        record.launched(arrays, token)
        if group is not None:
            watchdog.on_launched(arrays, program.sizes.smallest)
        results = [
            made[where] if kind == "result" else tensors[where] if kind == "argument" else where
            for kind, where in self._results
        ]
        result, closure_args = jax.tree_util.tree_unflatten(self._result_structure, results)
        for closure, args in zip(self._closures, closure_args, strict=True):
            step_closures.queue_step_closure(self.device, replace(closure, args=args))
        return None, result

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
