"""A graph that torch.compile has traced, recorded once: each call is one node of the step's graph.

    fx graph ──run once on copies of placeholders──► function of the arguments ──► torch_xla::jax_call at each call
       writes to arguments: more results, copied into the arguments    what it reads of its own: more arguments

    a result is            each call gives
    an argument            that tensor
    made by the graph      the node's result
    a view of either       the same view of that tensor
    a number, None         the same again

What cannot be recorded once runs as it is at each call, operation by operation, and is counted (DynamoRunAsItIs):
graphs that ask for values, exchange values with other replicas, or give several views of what they do not give whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import autograd_function, capture_function, jax_function, pure_function
from torch_xla._engine.capture.pure_function import RecordedCall
from torch_xla._engine.lowering.rules import jax_call

_WHAT = "torch.compile"


class _UnsupportedGraphError(RuntimeError):
    """A graph that cannot be one node."""


@dataclass(frozen=True, slots=True)
class _Argument:
    place: int


@dataclass(frozen=True, slots=True)
class _Result:
    place: int


@dataclass(frozen=True, slots=True)
class _View:
    of: _Argument | _Result
    steps: Any  # the recorder's


@dataclass(slots=True)
class _CallPlan:
    """One signature of a graph: its node, and what to make of the node's results."""

    known: RecordedCall
    tensors: list[int]  # the arguments that are tensors
    captured: list[torch.Tensor]
    outputs: list[Any]  # _Argument, _Result, _View, or a constant
    written: list[int]  # arguments that get new values, which are the last results
    kind: Callable[[list[Any]], Any]

    def __call__(self, args: Sequence[Any]) -> Any:
        tensors = args if len(self.tensors) == len(args) else [args[i] for i in self.tensors]
        results = pure_function.run_recorded_call(self.known, [*tensors, *self.captured] if self.captured else tensors)
        if self.written:
            with torch.no_grad():
                for place, value in zip(self.written, results[-len(self.written) :], strict=True):
                    args[place].copy_(value)
        return self.kind([self._output(output, args, results) for output in self.outputs])

    def _output(self, output: Any, args: Sequence[Any], results: Sequence[torch.Tensor]) -> Any:
        if isinstance(output, _Result):
            return results[output.place]
        if isinstance(output, _View):
            return output.steps.replay(self._output(output.of, args, results))
        return args[output.place] if isinstance(output, _Argument) else output


class CompiledGraph:
    """A graph as a function of its arguments.

    Shapes and dtypes are those that torch.compile guards: a graph without sizes among its arguments is recorded once
    for each need of gradients, one with sizes (dynamic shapes) once for each shapes.

    Args:
      module: the graph; it is kept, for signatures that come later.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._plans: LruCache[_CallPlan] = LruCache(limit=lambda: 256, weigh=lambda plan: plan.known.bytes)
        self._dynamic = False
        self._as_it_is = False
        self._counter = recorder.bindings().counter("DynamoRunAsItIs")

    def __call__(self, *args: Any) -> Any:
        if not self._as_it_is:
            plan = self._plans.get(self._key(args))
            if plan is not None and not (jax_call.forgotten and not _is_whole(plan)):
                return plan(args)
            try:
                return self._planned(args)(args)
            except _UnsupportedGraphError:
                self._as_it_is = True
        self._counter.add()
        return self._module(*args)

    def _key(self, args: Sequence[Any]) -> Hashable:
        state = pure_function.capture_state_key()
        if not self._dynamic:
            return state
        return (state, *((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in args))

    def _planned(self, args: Sequence[Any]) -> _CallPlan:
        if any(not isinstance(a, torch.Tensor) for a in args):
            self._dynamic = True
        places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        if not places or any(args[i].device.type != "xla" for i in places):
            raise _UnsupportedGraphError
        plan = self._record(args, places)
        self._plans.put(self._key(args), plan)
        return plan

    def _record(self, args: Sequence[Any], places: list[int]) -> _CallPlan:
        tensors = [args[i] for i in places]
        structs = jax_function.shape_structs(tensors)
        run = _FunctionalizedRun(self._module, args, places)
        captured: list[torch.Tensor] = []
        inputs = autograd_function.inputs_requiring_grad(tensors) if torch.is_grad_enabled() else ()
        try:
            recorded = capture_function.capture_function(_WHAT, run, structs, inputs, tensors[0].device.index, captured)
        except RuntimeError as error:  # it needs a value, or other replicas; or it is wrong, which it will say again
            raise _UnsupportedGraphError from error
        name = (
            jax_function.function_name(type(self._module))
            if not isinstance(self._module, torch.fx.GraphModule)
            else "graph"
        )
        known = pure_function.make_recorded_call(
            _WHAT, name, recorded, [*structs, *jax_function.shape_structs(captured)], [*tensors, *captured]
        )
        return _CallPlan(known, places, captured, run.outputs, run.written, run.kind)


def _is_whole(plan: _CallPlan) -> bool:
    return all(map(jax_call.is_registered, plan.known.numbers))


class _FunctionalizedRun:
    """The graph as a function that writes to no argument; notes what becomes of the arguments and of the results."""

    def __init__(self, module: torch.fx.GraphModule, args: Sequence[Any], places: Sequence[int]) -> None:
        self._module, self._args, self._places = module, args, places
        self.outputs: list[Any] = []
        self.written: list[int] = []
        self.kind: Callable[[list[Any]], Any] = tuple

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        copies = [t.clone() for t in tensors]
        before = _nodes(copies)
        given = list(self._args)
        for place, copy in zip(self._places, copies, strict=True):
            given[place] = copy
        outs = self._module(*given)
        self.written = [
            place for place, was, now in zip(self._places, before, _nodes(copies), strict=True) if was is not now
        ]
        single = isinstance(outs, torch.Tensor)
        self.kind = (lambda found: found[0]) if single else type(outs)
        results: list[torch.Tensor] = []
        self.outputs = [self._output(out, copies, results) for out in ([outs] if single else outs)]
        return [*results, *(given[place] for place in self.written)]

    def _output(self, out: Any, copies: Sequence[torch.Tensor], results: list[torch.Tensor]) -> Any:
        if not isinstance(out, torch.Tensor):
            return out
        whole: list[tuple[_Argument | _Result, torch.Tensor]]
        whole = [(_Argument(place), copy) for place, copy in zip(self._places, copies, strict=True)]
        whole += [(_Result(number), result) for number, result in enumerate(results)]
        for what, tensor in whole:
            if out is tensor:
                return what
        module = recorder.bindings()
        memory = module.storage_id(out.detach())
        for what, tensor in whole:
            if memory and memory == module.storage_id(tensor.detach()):
                if len(module.view_chain(tensor.detach())) or out.requires_grad:
                    raise RuntimeError("a result that shares memory in a way that a node cannot say")
                return _View(what, module.view_chain(out.detach()))
        results.append(out)
        return _Result(len(results) - 1)


def _nodes(tensors: Sequence[torch.Tensor]) -> list[Any]:
    nodes: list[Any] = recorder.bindings().nodes_of([t.detach() for t in tensors])
    return nodes
