"""What the graph of a recorded step reads and writes: the places of its inputs and results, and its program.

A StateSnapshot of the recorder (csrc/graph/state_snapshot.h) describes the graph between its collection and its launch.
A place that a replay cannot read or write is a problem of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.compilation import bucketed_program
from torch_xla._engine.compilation.compile_graph import CompiledProgram
from torch_xla._engine.execution import value_errors
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec
from torch_xla._engine.recorder import source_info


@dataclass
class Observation:
    """The graph of one recording."""

    graph_key: bytes
    described: dict[str, Any]
    program: CompiledProgram
    checked: Any
    origins: list[str | None]
    native: Any = None  # the recorder's ReplayProgram; None if there is a problem
    leaf_arrays: list[Any] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    bucketing: Bucketing | None = None

    def use_buckets(self) -> None:
        """Make the ReplayProgram leave small values in buckets between calls, if that is profitable."""
        if self.bucketing is not None:
            bucketed = self.bucketing.compile(self.program)
            self.native.use_buckets(bucketed.executable, bucketed.groups)


@dataclass
class Bucketing:
    """What a program with buckets is compiled from. Nothing of it is on a device."""

    spec: GraphSpec
    leaves: list[jax.ShapeDtypeStruct]
    groups: list[bucketed_program.BucketGroup]

    def compile(self, program: CompiledProgram) -> bucketed_program.BucketedProgram:
        """Return the program with these buckets; compiled once."""
        key = tuple((*group.sources, None, *group.targets) for group in self.groups)
        found: bucketed_program.BucketedProgram | None = program.bucketed.get(key)
        if found is None:
            found = bucketed_program.compile_with_buckets(self.spec, program, self.leaves, self.groups)
            program.bucketed[key] = found
        return found


class GraphObserver:
    """Describes the graph of one recorded step.

    Args:
      snapshot: the recorder's StateSnapshot of before the step.
      arguments: the tensors that are passed, rather than reached by name.
      results: the new tensors that the step returns.
      known: id -> (tensor, name) of the tensors that the step can reach.
      draws: how many random numbers it draws.
      fail: notes (cause, fix, whether it is lasting) of a problem.
    """

    def __init__(
        self,
        snapshot: Any,
        arguments: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        known: Mapping[int, tuple[torch.Tensor, str]],
        draws: int,
        fail: Callable[..., None],
    ) -> None:
        self._snapshot, self._arguments, self._results = snapshot, arguments, results
        self._known, self._draws, self._fail = known, draws, fail
        self._failed = False

    def fail(self, cause: str, fix: str, lasting: bool = True) -> None:
        """Note a problem."""
        self._failed = True
        self._fail(cause, fix, lasting)

    def observe(self, run: GraphRun, program: CompiledProgram) -> Observation:
        """Return the observation of a graph that is about to be launched."""
        graph = run.graph
        described = self._snapshot.describe(graph, self._arguments, self._results)
        lines = [source_info.origin_from_id(number) for number in described["origins"]]
        origins = [origin.line if origin is not None else None for origin in lines]
        checked = value_errors.locate_ops(run, program.checked)
        found = Observation(graph.key, described, program, checked, origins)
        sources = [self._source(i, places, graph) for i, places in enumerate(described["leaves"])]
        targets = [self._target(places) for places in described["targets"]]
        self._check_assigned(described)
        self._check_seeds(described)
        if not self._failed:
            found.native = self._make_native(graph, program, described, sources, targets)
            found.summary = _summarize(graph, described, sources, targets)
            arrays = graph.inputs()
            found.leaf_arrays = [
                np.array(arrays[i]) if place[0] == "constant" else None for i, place in enumerate(sources)
            ]
            groups = bucketed_program.group_arrays(program, found.native.bucket_candidates())
            if groups:
                structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in arrays]
                found.bucketing = Bucketing(run.spec, structs, groups)
        return found

    def _make_native(
        self, graph: Any, program: CompiledProgram, described: dict[str, Any], sources: list[Any], targets: list[Any]
    ) -> Any:
        return recorder.bindings().ReplayProgram(
            graph=graph,
            executable=program.executable,
            place=program.placement.input_placer(),
            sources=sources,
            targets=targets,
            cleared=list(described["cleared"]),
            watched=described["watched"],
            arguments=self._arguments,
            seeds=described["seeds"],
            draws=self._draws,
        )

    def _check_assigned(self, described: dict[str, Any]) -> None:
        for place in described["assigned"]:
            self.fail(
                f"it assigns a value that it does not compute to {self._describe(place)}",
                "copy the value with clone()",
                lasting=False,
            )

    def _check_seeds(self, described: dict[str, Any]) -> None:
        if any(described["ints"][i] != described["ints"][described["seeds"][0]] for i in described["seeds"]):
            self.fail(
                "it draws random numbers of a torch.Generator, or the random number state wraps around",
                "draw from the default generator of the device",
                lasting=False,
            )

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
        found = self._known.get(id(where))
        if found is None:
            return f"{kind} {where}"
        return found[1] if kind == "tensor" else f"the gradient of {found[1]}"


def _summarize(graph: Any, described: dict[str, Any], sources: list[Any], targets: list[Any]) -> dict[str, Any]:
    return {
        "key": graph.key,
        "node_count": graph.node_count,
        "leaf_shapes": graph.leaf_shapes,
        "root_count": graph.root_count,
        "sources": [_identify(place) for place in sources],
        "targets": [[_identify(place) for place in places] for places in targets],
        "cleared": [id(tensor) for tensor in described["cleared"]],
    }


def _identify(place: tuple[str, Any]) -> tuple[str, Hashable]:
    kind, where = place
    if kind == "constant":
        return kind, (where.shape, str(where.dtype))
    return kind, where if isinstance(where, int) else id(where)
