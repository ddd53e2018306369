"""One recorded call of a step: what it reads, writes and returns, and whether it can be replayed.

    Recording(step, arguments)    pending operations have run; objects and tensors are listed
      .run()                      the step runs; numbers are traced; random states of the host are compared
      .observe(run, program)      between collecting and launching its graph: places of inputs and results
      .problem                    why this call cannot be replayed; None if it can

A recording changes no state but what the step changes: traced numbers in parameter groups are replaced by the plain
ones when the step returns or raises. It is owned by the ReplayedFunction that compares it with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.execution import step_closures, value_errors
from torch_xla._engine.execution.step_closures import StepClosure
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.recorder import source_info
from torch_xla._engine.replay.host_reads import HostScalar, ScalarReads, equal_states, host_random_states, is_countable
from torch_xla._engine.replay.iterator_reads import is_plain_iterator, watch_iterators
from torch_xla._engine.replay.number_calls import traced_calls
from torch_xla._engine.replay.number_reads import NumberReads
from torch_xla._engine.replay.object_guards import ObjectWalk, TooManyObjects, is_plain
from torch_xla._engine.replay.observation import GraphObserver, Observation
from torch_xla._engine.replay.problem import Problem
from torch_xla._engine.replay.step_arguments import HostArguments, StepArguments
from torch_xla._engine.replay.traced_number import NumberTrace, TracedNumber

#: Seconds to wait for asynchronous step closures; one that runs longer may cost another recording.
_CLOSURE_TIMEOUT = 5.0


class Recording:
    """One recorded call."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: StepArguments,
        device: int,
    ) -> None:
        self.name, self.device, self.key = name, device, arguments.key
        self.arguments: StepArguments | None = arguments
        self.leaves: list[Any] = []
        self.problem: Problem | None = None
        self.observation: Observation | None = None
        self.trace = NumberTrace()
        #: The tensors among the arguments, but those that the step reaches without them: these are bound by identity.
        self.tensors: list[torch.Tensor] = []
        self._function = function
        self.results: list[Any] = []
        #: Of each leaf of the result: ("result", i), ("argument", i), ("tensor", it) or ("value", it).
        self.places: list[tuple[str, Any]] = []
        self.result_tensors: list[torch.Tensor] = []
        self.result_structure: Any = None
        self.scalars: dict[int, HostScalar] = {}
        self.counts: list[tuple[HostScalar, float]] = []
        self.draws = 0
        self.closures: list[StepClosure] = []  # that the step adds
        self._is_quiet = True  # no step closure runs on another thread, where it may change what the step can reach

    def prepare(self) -> None:
        """List what the step can reach. Nothing is pending on the device."""
        assert self.arguments is not None
        self._is_quiet = step_closures.wait_until_quiet(_CLOSURE_TIMEOUT)
        self.arguments.upload()
        self.leaves = list(self.arguments.leaves)
        try:
            self.walk = ObjectWalk(self._roots())
        except TooManyObjects:
            self.fail("it reaches too many Python objects to check", "pass what it needs as arguments")
            self.walk = ObjectWalk(())
        self._check_arguments()
        for tensor, name in self.walk.host_tensors.values():
            if is_countable(tensor):
                scalar = HostScalar(tensor, name, float(tensor.item()), tensor._version)
                self.scalars[id(tensor)] = scalar
                self.trace.add_source(("scalar", id(tensor)), scalar.before)
        self._versions = {key: tensor._version for key, (tensor, _) in self.walk.host_tensors.items()}
        self.snapshot = recorder.bindings().StateSnapshot(
            self.device, [tensor for tensor, _ in self.walk.tensors.values()]
        )

    def _roots(self) -> list[tuple[str, Any]]:
        objects = [leaf for leaf in self.leaves if not is_plain(leaf) and not isinstance(leaf, torch.Tensor)]
        return [(self.name, self._function), *((type(leaf).__name__, leaf) for leaf in objects)]

    def _check_arguments(self) -> None:
        for leaf in self.leaves:
            if isinstance(leaf, np.ndarray) or (isinstance(leaf, torch.Tensor) and leaf.device.type != "xla"):
                self.fail(
                    "an argument is an array on the CPU", "pass a tensor, without requires_grad if it is not on xla"
                )
            elif isinstance(leaf, torch.Tensor) and id(leaf) not in self.walk.tensors:
                self.tensors.append(leaf)
                if leaf.requires_grad:
                    self.fail("an argument requires a gradient", "pass detach(), or a module that has the tensor")

    def fail(self, cause: str, fix: str, lasting: bool = True) -> None:
        """Note why this call cannot be replayed; the first cause stays."""
        self.problem = self.problem or Problem(cause, fix, lasting and self._is_quiet)

    def run(self) -> Any:
        """Run the step; return its result with detached tensors. Raises what the step raises."""
        states = host_random_states(self.walk.generators)
        arguments = self._traced_arguments()
        call, number_calls = self.arguments, traced_calls(self.walk.number_holders)
        assert call is not None
        reads, uploads = ScalarReads(self.scalars, self.trace), HostArguments(call)
        assertions = value_errors.assertion_count(self.device)
        iterators = [((arguments, i), f"argument {i}") for i, value in enumerate(arguments) if is_plain_iterator(value)]
        with (
            self._traced_groups(), reads, uploads, NumberReads(), _captured_lines(), number_calls,
            watch_iterators([*self.walk.iterators, *iterators]) as advanced,
        ):  # fmt: skip
            args, kwargs = call.unflatten(arguments)
            result = self._function(*args, **kwargs)
        for name in advanced[:1]:
            self.fail(
                f"it reads {name}, an iterator, which a replay would not advance",
                "read it before the call, and pass the value as an argument",
            )
        drawn = host_random_states(self.walk.generators)
        for library, before in states.items():
            if not equal_states(before, drawn[library]):
                self.fail(
                    f"it draws random numbers of {library} on the host, which a replay would not draw",
                    "draw them on the device, or before the call, and pass them as arguments",
                )
        for scalar, use in reads.other_uses.items():
            self.fail(f"it uses {scalar}, a tensor on the CPU, in {use}", "move it to the device")
        if uploads.other_use is not None:
            cause = f"it uses an argument that is a tensor on the CPU in {uploads.other_use}"
            self.fail(cause, "move the tensor to the device first, or before the call")
        if value_errors.assertion_count(self.device) > assertions:
            self.fail("it calls torch._assert_async, which a replay would not check", "assert after the call")
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
        self.closures = step_closures.queued_closures(self.device)
        if self.closures and self.problem is None:
            functions = [getattr(closure.function, "__func__", closure.function) for closure in self.closures]
            self.walk.guards = ObjectWalk(self._roots(), functions).guards
        result, _ = self._finish_results((result, [list(closure.args) for closure in self.closures]))
        return result

    def _traced_arguments(self) -> list[Any]:
        assert self.arguments is not None
        found = [
            self.trace.add_source(("argument", i), leaf) if type(leaf) is float else leaf
            for i, leaf in enumerate(self.leaves)
        ]
        for i in self.arguments.uploaded:
            found[i] = self.arguments.originals[i]
        return found

    def _views(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (copy, view) of each argument that is a view."""
        call = self.arguments
        assert call is not None
        pairs = enumerate(zip(self.leaves, call.originals, strict=True))
        return [(leaf, view) for i, (leaf, view) in pairs if leaf is not view and i not in call.uploaded]

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
        for leaf, view in self._views():
            if leaf._version:
                view.copy_(leaf)
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
        copies = {id(leaf): view for leaf, view in self._views()}
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
        self.leaves, self.tensors, self.results, self.result_tensors = [], [], [], []
        self.arguments, self.snapshot = None, None
        self.closures = [replace(closure, args=()) for closure in self.closures]

    def observe(self, run: GraphRun, program: CompiledProgram) -> None:
        """Describe the graph of the step, between its collection and its launch."""
        observer = GraphObserver(
            self.snapshot, self.tensors, self.result_tensors, self.walk.tensors, self.draws, self.fail
        )
        self.observation = observer.observe(run, program)


@contextmanager
def _captured_lines() -> Iterator[None]:
    """Capture the source line of each operation in the block, for the messages."""
    before = source_info.is_capturing()
    source_info.set_capture(True)
    try:
        yield
    finally:
        source_info.set_capture(before)
