"""The torch.compile backend "openxla": capture a traced fx graph once and record each call as one node.

    fx graph ──run once on clones of placeholders──► pure function ──► torch_xla::jax_call at each call
       writes to arguments become results             tensors read from outside become arguments

Functionalization. An fx graph may write to its arguments; a recorded node cannot. _FunctionalizedRun runs the graph on
clones and compares the clones' nodes before and after: a clone with another node was written to. Its new value is one
more result of the node, which each call copies into the caller's tensor. Aliasing is restored from the plan:

    def graph(x, y):         captured function                each call
        x.add_(y)            x1 = x + y                       r, x1 = node(x, y)
        z = x * 2            r = x1 * 2                       x.copy_(x1)
        return x[0], x, z    outputs: view, argument, result  return x[0], x, r

    output of the graph                    each call returns
    an argument                            the caller's tensor
    computed by the graph                  the node's result
    a view of either                       the same view chain, replayed on that tensor
    a number, None                         the same value

A graph that cannot be captured runs eagerly at each call, operation by operation. It needs tensor values, issues
collectives, writes to a tensor from outside, or has a tensor of another device. Its calls are counted
(DynamoRunAsItIs), and uncaptured_graph reports its line once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import autograd_function, capture_function, jax_function, pure_function, uncaptured_graph
from torch_xla._engine.capture.pure_function import RecordedCall
from torch_xla._engine.lowering.rules import jax_call

_WHAT = "torch.compile"


class _UnsupportedGraphError(RuntimeError):
    """The graph cannot be recorded as one node."""


class _NoTensorsError(_UnsupportedGraphError):
    """The graph has no tensor arguments: it only creates tensors. Nothing is lost by recording each operation."""


@dataclass(frozen=True, slots=True)
class _Argument:
    index: int


@dataclass(frozen=True, slots=True)
class _Result:
    index: int


@dataclass(frozen=True, slots=True)
class _View:
    base: _Argument | _Result
    chain: Any  # the recorder's view chain


@dataclass(slots=True)
class _CallPlan:
    """The node for one signature of a graph, and how its results become the graph's outputs."""

    known: RecordedCall
    tensors: list[int]  # indices of the tensor arguments
    captured: list[torch.Tensor]  # tensors from outside, passed after the arguments
    outputs: list[Any]  # _Argument, _Result, _View, or a constant
    written: list[int]  # arguments that the graph writes to; their new values are the last results
    container: Callable[[list[Any]], Any]  # builds the return value from the list of outputs

    def __call__(self, args: Sequence[Any]) -> Any:
        tensors = args if len(self.tensors) == len(args) else [args[i] for i in self.tensors]
        results = pure_function.run_recorded_call(self.known, [*tensors, *self.captured] if self.captured else tensors)
        if self.written:
            with torch.no_grad():
                for index, value in zip(self.written, results[-len(self.written) :], strict=True):
                    args[index].copy_(value)
        return self.container([self._output(output, args, results) for output in self.outputs])

    def _output(self, output: Any, args: Sequence[Any], results: Sequence[torch.Tensor]) -> Any:
        if isinstance(output, _Result):
            return results[output.index]
        if isinstance(output, _View):
            return output.chain.replay(self._output(output.base, args, results))
        return args[output.index] if isinstance(output, _Argument) else output


class CompiledGraph:
    """An fx graph as a function of its arguments, captured once for each signature.

    torch.compile guards shapes and dtypes. A graph without sizes among its arguments is captured once for each state of
    torch (grad mode, autocast, ...), one with sizes (dynamic shapes) also once for each combination of shapes.

    Args:
      module: The graph. It is retained to capture later signatures.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._plans: LruCache[_CallPlan] = LruCache(limit=lambda: 256, weigh=lambda plan: plan.known.bytes)
        self._dynamic = False
        self._runs_eagerly = False
        self._counter = recorder.bindings().counter("DynamoRunAsItIs")

    def __call__(self, *args: Any) -> Any:
        if not self._runs_eagerly:
            plan = self._plans.get(self._key(args))
            if plan is not None and not (jax_call.forgotten and not _is_registered(plan)):
                return plan(args)
            try:
                return self._make_plan(args)(args)
            except _UnsupportedGraphError as error:
                self._runs_eagerly = True
                if not isinstance(error, _NoTensorsError):
                    uncaptured_graph.warn(self._module, error.__cause__, str(error))
        self._counter.add()
        return self._module(*args)

    def _key(self, args: Sequence[Any]) -> Hashable:
        state = pure_function.capture_state_key()
        if not self._dynamic:
            return state
        return (state, *((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in args))

    def _make_plan(self, args: Sequence[Any]) -> _CallPlan:
        if any(not isinstance(a, torch.Tensor) for a in args):
            self._dynamic = True
        indices = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        if not indices:
            raise _NoTensorsError
        others = [args[i] for i in indices if args[i].device.type != "xla"]
        if others:
            tensor = others[0]
            raise _UnsupportedGraphError(f"it uses a {tensor.dtype} tensor {[*tensor.shape]} on {tensor.device}")
        plan = self._capture(args, indices)
        self._plans.put(self._key(args), plan)
        return plan

    def _capture(self, args: Sequence[Any], indices: list[int]) -> _CallPlan:
        tensors = [args[i] for i in indices]
        structs = jax_function.shape_structs(tensors)
        run = _FunctionalizedRun(self._module, args, indices)
        captured: list[torch.Tensor] = []
        inputs = autograd_function.inputs_requiring_grad(tensors) if torch.is_grad_enabled() else ()
        try:
            recorded = capture_function.capture_function(_WHAT, run, structs, inputs, tensors[0].device.index, captured)
        except RuntimeError as error:  # needs a value or other replicas; or is wrong: the eager run raises it again
            raise _UnsupportedGraphError from error
        name = (
            jax_function.function_name(type(self._module))
            if not isinstance(self._module, torch.fx.GraphModule)
            else "graph"
        )
        known = pure_function.make_recorded_call(
            _WHAT, name, recorded, [*structs, *jax_function.shape_structs(captured)], [*tensors, *captured]
        )
        return _CallPlan(known, indices, captured, run.outputs, run.written, run.container)


def _is_registered(plan: _CallPlan) -> bool:
    return all(map(jax_call.is_registered, plan.known.numbers))


class _FunctionalizedRun:
    """An fx graph as a pure function: runs it on clones, and returns the new values of written arguments as results.

    A call sets ``outputs``, ``written`` and ``container``, which a _CallPlan needs to restore writes and aliasing.
    """

    def __init__(self, module: torch.fx.GraphModule, args: Sequence[Any], indices: Sequence[int]) -> None:
        self._module, self._args, self._indices = module, args, indices
        self.outputs: list[Any] = []
        self.written: list[int] = []
        self.container: Callable[[list[Any]], Any] = tuple

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        copies = [t.clone() for t in tensors]
        before = _nodes(copies)
        given = list(self._args)
        for index, copy in zip(self._indices, copies, strict=True):
            given[index] = copy
        outs = self._module(*given)
        self.written = [
            index for index, was, now in zip(self._indices, before, _nodes(copies), strict=True) if was is not now
        ]
        single = isinstance(outs, torch.Tensor)
        self.container = (lambda found: found[0]) if single else type(outs)
        flat_outputs = [outs] if single else outs
        results = _shared_bases(flat_outputs)
        self.outputs = [self._output(out, copies, results) for out in flat_outputs]
        return [*results, *(given[index] for index in self.written)]

    def _output(self, out: Any, copies: Sequence[torch.Tensor], results: list[torch.Tensor]) -> Any:
        if not isinstance(out, torch.Tensor):
            return out
        bases: list[tuple[_Argument | _Result, torch.Tensor]]
        bases = [(_Argument(index), copy) for index, copy in zip(self._indices, copies, strict=True)]
        bases += [(_Result(number), result) for number, result in enumerate(results)]
        for what, tensor in bases:
            if out is tensor:
                return what
        module = recorder.bindings()
        storage = module.storage_id(out.detach())
        for what, tensor in bases:
            if storage and storage == module.storage_id(tensor.detach()):
                if len(module.view_chain(tensor.detach())) or out.requires_grad:
                    raise RuntimeError("an output aliases another tensor in a way that a plan cannot represent")
                return _View(what, module.view_chain(out.detach()))
        results.append(out)
        return _Result(len(results) - 1)


def _shared_bases(outs: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors that several outputs are views of and that are no outputs: they become results as well."""
    module = recorder.bindings()
    by_storage: dict[Any, dict[int, torch.Tensor]] = {}
    for out in outs:
        if isinstance(out, torch.Tensor) and not out.requires_grad and (storage := module.storage_id(out)):
            by_storage.setdefault(storage, {})[id(out)] = out
    bases = []
    for storage, views in by_storage.items():
        base = next(iter(views.values()))._base
        if len(views) < 2 or base is None or not all(len(module.view_chain(view)) for view in views.values()):
            continue
        if module.storage_id(base.detach()) == storage and not len(module.view_chain(base.detach())):
            bases.append(base.detach())
    return bases


def _nodes(tensors: Sequence[torch.Tensor]) -> list[Any]:
    nodes: list[Any] = recorder.bindings().nodes_of([t.detach() for t in tensors])
    return nodes
