"""One recorded call of a step: what it reads, writes and returns, and whether it can be replayed.

    Recording(step, arguments)    pending operations have run; objects and tensors are listed
      .run()                      the step runs; numbers are traced; random states of the host are compared
      .observe(run, program)      between collecting and launching its graph: places of inputs and results
      .problem                    why this call cannot be replayed; None if it can

A recording changes no state but what the step changes: traced numbers in parameter groups are replaced by the plain
ones when the step returns or raises. It is owned by the ReplayedFunction that compares it with the next one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.compilation.placement import SingleDevicePlacement
from torch_xla._engine.execution import step_closures, value_errors
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.recorder import source_info
from torch_xla._engine.replay.object_guards import ObjectWalk, TooManyObjects, is_plain
from torch_xla._engine.replay.traced_number import NumberTrace, TracedNumber


@dataclass
class Problem:
    """Why a recorded call cannot be replayed: what happens, where, and what to write instead."""

    cause: str
    fix: str
    lasting: bool = True  # False: the next call may differ, as after the first step of an optimizer


@dataclass
class HostScalar:
    """A scalar on the CPU that the step reads or counts up, such as the step count of Adam."""

    tensor: torch.Tensor
    name: str
    before: float
    version: int


_COUNTABLE = (torch.float32, torch.float64, torch.int64)
_SCALAR_USES = frozenset({"add_", "__iadd__", "_foreach_add_", "__get__", "numel", "dim", "is_floating_point", "size"})


class _ScalarReads(TorchFunctionMode):
    """Makes reads of host scalars traced numbers; notes any other use of them."""

    def __init__(self, scalars: dict[int, HostScalar], trace: NumberTrace) -> None:
        super().__init__()
        self._scalars, self._trace = scalars, trace
        self.other_uses: dict[str, str] = {}  # name of the scalar -> function and line

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        for argument in args:
            for value in argument if type(argument) is list else (argument,):
                scalar = self._scalars.get(id(value))
                if scalar is None:
                    continue
                if name == "item" and type(found) in (float, int):
                    return self._read(scalar, float(found))
                if name not in _SCALAR_USES:
                    self.other_uses[scalar.name] = f"{name}() at {user_frames.user_line()}"
        return found

    def _read(self, scalar: HostScalar, value: float) -> float:
        added = value - scalar.before
        source = ("source", ("scalar", id(scalar.tensor)))
        return self._trace.make(value, ("+", source, ("constant", added)) if added else source)


@dataclass
class Observation:
    """What the graph of a recording reads and writes; see csrc/graph/state_snapshot.h."""

    graph_key: bytes
    described: dict[str, Any]
    program: CompiledProgram
    checked: Any
    origins: list[str | None]
    native: Any = None  # the recorder's ReplayProgram; None if there is a problem
    leaf_arrays: list[Any] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


class Recording:
    """One recorded call. ``leaves``: the flattened arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        leaves: Sequence[Any],
        structure: Any,
        device: int,
        originals: Sequence[Any],
    ) -> None:
        self.name, self.leaves, self.structure, self.device = name, list(leaves), structure, device
        self.originals = originals  # the arguments, of which ``leaves`` has a copy of each view
        self.problem: Problem | None = None
        self.observation: Observation | None = None
        self.trace = NumberTrace()
        #: The tensors among the arguments, but those that the step reaches without them: these are bound by identity.
        self.tensors: list[torch.Tensor] = []
        self._function = function
        self._restored: list[tuple[dict[str, Any], str, float, TracedNumber]] = []
        self.results: list[Any] = []
        #: Of each leaf of the result: ("result", i), ("argument", i), ("tensor", it) or ("value", it).
        self.places: list[tuple[str, Any]] = []
        self.result_tensors: list[torch.Tensor] = []
        self.result_structure: Any = None
        self.scalars: dict[int, HostScalar] = {}
        self.counts: list[tuple[HostScalar, float]] = []
        self.draws = 0

    def prepare(self) -> None:
        """List what the step can reach. Nothing is pending on the device."""
        objects = [leaf for leaf in self.leaves if not is_plain(leaf) and not isinstance(leaf, torch.Tensor)]
        roots = [(self.name, self._function), *((type(leaf).__name__, leaf) for leaf in objects)]
        try:
            self.walk = ObjectWalk(roots)
        except TooManyObjects:
            self.fail("it reaches too many Python objects to check", "pass what it needs as arguments")
            self.walk = ObjectWalk(())
        self._check_arguments()
        for tensor, name in self.walk.host_tensors.values():
            if tensor.numel() == 1 and tensor.dim() == 0 and tensor.dtype in _COUNTABLE and not tensor.requires_grad:
                scalar = HostScalar(tensor, name, float(tensor.item()), tensor._version)
                self.scalars[id(tensor)] = scalar
                self.trace.add_source(("scalar", id(tensor)), scalar.before)
        self._versions = {key: tensor._version for key, (tensor, _) in self.walk.host_tensors.items()}
        self.snapshot = recorder.bindings().StateSnapshot(
            self.device, [tensor for tensor, _ in self.walk.tensors.values()]
        )

    def _check_arguments(self) -> None:
        for leaf in self.leaves:
            if isinstance(leaf, np.ndarray) or (isinstance(leaf, torch.Tensor) and leaf.device.type != "xla"):
                self.fail("an argument is an array on the CPU", "pass a tensor on the device")
            elif isinstance(leaf, torch.Tensor) and id(leaf) not in self.walk.tensors:
                self.tensors.append(leaf)
                if leaf.requires_grad:
                    self.fail("an argument requires a gradient", "pass detach(), or a module that has the tensor")

    def fail(self, cause: str, fix: str, lasting: bool = True) -> None:
        """Note why this call cannot be replayed; the first cause stays."""
        self.problem = self.problem or Problem(cause, fix, lasting)

    def run(self) -> Any:
        """Run the step; return its result with detached tensors. Raises what the step raises."""
        states = _host_random_states()
        arguments = self._traced_arguments()
        with self._traced_groups(), _ScalarReads(self.scalars, self.trace) as reads, _captured_lines():
            args, kwargs = jax.tree_util.tree_unflatten(self.structure, arguments)
            result = self._function(*args, **kwargs)
        for library, before in states.items():
            if not _equal_states(before, _host_random_states()[library]):
                self.fail(
                    f"it draws random numbers of {library} on the host, which a replay would not draw",
                    "draw them on the device, or before the call, and pass them as arguments",
                )
        for scalar, use in reads.other_uses.items():
            self.fail(f"it uses {scalar}, a tensor on the CPU, in {use}", "move it to the device")
        self._copy_back_views()
        self._compare_host_tensors()
        changed = self.walk.guards.failed()
        if changed is not None:
            self.fail(
                f"it changes {changed} in each call, which a replay would not do",
                "change it after the call, or make it a tensor on the device that is updated in place",
                lasting=False,
            )
        self.draws = recorder.bindings().draws_since_flush(self.device)
        result = self._finish_results(result)
        if step_closures.has_queued(self.device):
            self.fail("it adds a step closure", "call xm.add_step_closure after the call, with its results")
        return result

    def _traced_arguments(self) -> list[Any]:
        return [
            self.trace.add_source(("argument", i), leaf) if type(leaf) is float else leaf
            for i, leaf in enumerate(self.leaves)
        ]

    @contextmanager
    def _traced_groups(self) -> Iterator[None]:
        replaced: list[tuple[dict[str, Any], str, float, TracedNumber]] = []
        try:
            for _, optimizer in self.walk.optimizers:
                for group in optimizer.param_groups:
                    for key, value in list(group.items()):
                        if type(value) is float:
                            traced = self.trace.add_source(("group", id(group), key), value)
                            replaced.append((group, key, value, traced))
                            group[key] = traced
            yield
        finally:
            for group, key, value, traced in replaced:
                if group.get(key) is traced:
                    group[key] = value
                elif isinstance(group.get(key), TracedNumber):
                    group[key] = float.__mul__(group[key], 1.0)

    def _copy_back_views(self) -> None:
        """Write what the step has written to the copy of a view to the view."""
        for leaf, original in zip(self.leaves, self.originals, strict=True):
            if leaf is not original and leaf._version:
                original.copy_(leaf)
                self.fail("it writes to an argument that is a view", "pass the tensor itself, or a clone() of the view")

    def _compare_host_tensors(self) -> None:
        for key, (tensor, name) in self.walk.host_tensors.items():
            if tensor._version == self._versions[key]:
                continue
            scalar = self.scalars.get(key)
            if scalar is None:
                self.fail(f"it writes to {name}, a tensor on the CPU", "move it to the device")
            else:
                self.counts.append((scalar, float(tensor.item()) - scalar.before))

    def _finish_results(self, result: Any) -> Any:
        leaves, self.result_structure = jax.tree_util.tree_flatten(result)
        del result
        known = {id(tensor) for tensor in self.tensors} | self.walk.tensors.keys()
        copies = {id(leaf): original for leaf, original in zip(self.leaves, self.originals, strict=True)}
        for i, leaf in enumerate(leaves):
            if copies.get(id(leaf), leaf) is not leaf:
                leaves[i] = copies[id(leaf)]
                self.fail("it returns an argument that is a view", "return a clone() of it")
            elif isinstance(leaf, torch.Tensor) and id(leaf) not in known:
                if leaf.device.type != "xla":
                    self.fail(
                        f"it returns a tensor on {leaf.device.type}, whose values a replay would not compute",
                        "return the tensor on the device, and call .cpu() after the call",
                    )
                    continue
                leaf = leaf.detach()
                if recorder.bindings().is_view(leaf):
                    leaf = leaf.clone()
                leaves[i] = leaf
                self.result_tensors.append(leaf)
            elif isinstance(leaf, TracedNumber):
                leaves[i] = float.__mul__(leaf, 1.0)
                self.fail("it returns a number that changes", "compute the number after the call")
            elif not isinstance(leaf, torch.Tensor) and not is_plain(leaf):
                self.fail(
                    f"it returns an object of {type(leaf).__name__}", "return tensors in tuples, lists or dictionaries"
                )
        self.results = leaves
        self.places = [self._place_result(leaf) for leaf in leaves]
        return jax.tree_util.tree_unflatten(self.result_structure, leaves)

    def _place_result(self, leaf: Any) -> tuple[str, Any]:
        for kind, tensors in (("result", self.result_tensors), ("argument", self.tensors)):
            for i, tensor in enumerate(tensors):
                if leaf is tensor:
                    return kind, i
        return ("tensor" if isinstance(leaf, torch.Tensor) else "value"), leaf

    def release_call(self) -> None:
        """Release the arguments, the results and the values of this call, before it is kept for comparison."""
        self.leaves, self.originals, self.tensors, self.results, self.result_tensors = [], [], [], [], []
        self.snapshot = None

    def observe(self, run: GraphRun, program: CompiledProgram, leaves: Sequence[Any] | None) -> None:
        """Describe the graph of the step, between its collection and its launch."""
        place = program.placement
        if type(place) is not SingleDevicePlacement or place.group is not None or leaves is not None:
            self.fail("its program runs on several devices", "use torch_xla.compile without replay=True")
            return
        described = self.snapshot.describe(run.graph, self.tensors, self.result_tensors)
        checked = value_errors.locate_ops(run, program.checked)
        lines = [source_info.origin_from_id(number) for number in described["origins"]]
        origins = [origin.line if origin is not None else None for origin in lines]
        graph = run.graph
        sources = [self._source(i, places, graph) for i, places in enumerate(described["leaves"])]
        targets = [self._target(places) for places in described["targets"]]
        for place in described["assigned"]:
            self.fail(
                f"it assigns a value that it does not compute to {self._describe(place)}",
                "copy the value with clone()",
                lasting=False,
            )
        if any(described["ints"][i] != described["ints"][described["seeds"][0]] for i in described["seeds"]):
            self.fail(
                "it draws random numbers of a torch.Generator, or the random number state wraps around",
                "draw from the default generator of the device",
                lasting=False,
            )
        self.observation = Observation(graph.key, described, program, checked, origins)
        if self.problem is None:
            self.observation.native = recorder.bindings().ReplayProgram(
                graph=graph,
                executable=program.executable,
                sources=sources,
                targets=targets,
                cleared=list(described["cleared"]),
                watched=described["watched"],
                arguments=self.tensors,
                seeds=described["seeds"],
                draws=self.draws,
            )
            self.observation.summary = {
                "key": graph.key,
                "node_count": graph.node_count,
                "leaf_shapes": graph.leaf_shapes,
                "root_count": graph.root_count,
                "sources": [_identify(place) for place in sources],
                "targets": [[_identify(place) for place in places] for places in targets],
                "cleared": [id(tensor) for tensor in described["cleared"]],
            }
            arrays = graph.inputs()
            self.observation.leaf_arrays = [
                np.array(arrays[i]) if place[0] == "constant" else None for i, place in enumerate(sources)
            ]

    def _source(self, position: int, places: list[Any], graph: Any) -> tuple[str, Any]:
        if not places:
            array = graph.inputs()[position]
            # One element is a number of Python, which is guarded; more may come from memory that has no version.
            if position in graph.donated or array.size != 1:
                self.fail("it moves a tensor from the CPU to the device", "move it before the call, and pass it")
            return "constant", array
        if len(places) > 1:
            self.fail("two of its tensors have one value", "make one of them with clone()", lasting=False)
        kind, where = places[0]
        if kind == "unknown":
            self.fail(
                f"it reads a tensor of shape {tuple(where)} that is not reachable from its arguments, closure, "
                "globals or modules",
                "pass the tensor as an argument",
            )
        return kind, where

    def _target(self, places: list[Any]) -> list[Any]:
        if not places:
            self.fail("it writes to a tensor of which only views are left", "keep the tensor itself", lasting=False)
        for kind, where in places:
            if kind == "new":
                self.fail(
                    f"it keeps a new tensor of shape {tuple(where)} that it does not return",
                    "return the tensor, or copy it into an existing one with copy_()",
                    lasting=False,
                )
            elif kind == "unknown":
                self.fail(
                    f"it writes to a tensor of shape {tuple(where)} that is not reachable from its arguments, "
                    "closure, globals or modules",
                    "pass the tensor as an argument",
                )
        return places

    def _describe(self, place: tuple[str, Any]) -> str:
        kind, where = place
        found = self.walk.tensors.get(id(where))
        if found is None:
            return f"{kind} {where}"
        return found[1] if kind == "tensor" else f"the gradient of {found[1]}"


def _identify(place: tuple[str, Any]) -> tuple[str, Hashable]:
    kind, where = place
    if kind == "constant":
        return kind, (where.shape, str(where.dtype))
    return kind, where if isinstance(where, int) else id(where)


def _host_random_states() -> dict[str, Any]:
    found: dict[str, Any] = {"random": random.getstate(), "torch on the CPU": torch.get_rng_state()}
    if "numpy.random" in sys.modules:
        found["numpy"] = np.random.get_state(legacy=False)  # noqa: NPY002
    return found


def _equal_states(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(_equal_states(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


@contextmanager
def _captured_lines() -> Iterator[None]:
    """Capture the source line of each operation in the block, for the messages."""
    before = source_info.is_capturing()
    source_info.set_capture(True)
    try:
        yield
    finally:
        source_info.set_capture(before)
