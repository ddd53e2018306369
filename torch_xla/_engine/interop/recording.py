"""A pure torch function as a jax function: run once on tensors without values, and what it recorded is the function.

    torch function ──run on placeholders──► graph ──describe──► GraphSpec ──split──► forward: results, residuals
                   ──torch's autograd─────►                                          backward: gradients of inputs

The gradient is the one that torch's autograd records, not jax's of the same operations: they differ at ties, at zeros
of norms, and wherever a function has a backward of its own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.compat import dispatcher
from torch_xla._engine.device import precision
from torch_xla._engine.execution import modes
from torch_xla._engine.graph import program
from torch_xla._engine.graph.program import GraphSpec
from torch_xla._engine.interop.split import Split, split

_SEED = "torch_xla::seed"


class _NoValue:
    """Stands in the place of a device buffer, for a tensor that has none."""

    nbytes = 0

    def __init__(self, what: str, shape: tuple[int, ...]) -> None:
        self._what, self.shape = what, shape

    def __getattr__(self, name: str) -> Any:
        raise _value_needed(object.__getattribute__(self, "_what"))


def _value_needed(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} is recorded once, without values, and a value is needed in it: printing, .item(), .cpu(), `if tensor:`"
        " and operations that run on the CPU need values; move them out of it"
    )


class _Arguments(dispatcher.DispatchMode):
    """Refuses xla tensors that are neither arguments nor made of them, and writes to arguments."""

    def __init__(self, what: str, arguments: Sequence[torch.Tensor], made: list[weakref.ref[torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._what = what
        self._known: dict[int, torch.Tensor] = {}
        self._made = made
        self.add(arguments)

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        self._made += [weakref.ref(t) for t in tensors if id(t) not in self._known]
        self._known.update((id(t), t) for t in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in _tensors((args, kwargs)):
            if value.device.type == "xla" and id(value) not in self._known:
                raise _not_an_argument(self._what, value)
        results = func(*args, **(kwargs or {}))
        self.add([t for t in _tensors(results) if t.device.type == "xla"])
        return results


def _not_an_argument(what: str, tensor: torch.Tensor) -> RuntimeError:
    graded = ", which requires a gradient," if tensor.requires_grad else ""
    return RuntimeError(
        f"{what} uses a tensor from outside ({tensor.dtype}{list(tensor.shape)} on {tensor.device}){graded} that is "
        "not an argument of it: pass it as one. PureModule passes the parameters and buffers of a module."
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A torch function as jax functions over flat arrays; if it is ``random``, its numbers follow from a seed (int64).

    ``tree`` is the structure of the results; ``graded`` are those with a gradient, ``inputs`` those that get one.
    """

    tree: Any
    results: int
    graded: tuple[int, ...]
    inputs: tuple[int, ...]
    random: bool
    parts: Split


@contextmanager
def _undisturbed(what: str, device: int) -> Iterator[None]:
    """In the block nothing runs, and the random numbers after it are those that would have come without it."""
    seed = recorder.module().get_seed(device)
    try:
        with modes.inside(modes.Region(what, True, None)):
            yield
    except RuntimeError as error:
        if str(error).startswith(("torch_xla: a value was asked for while", f"torch_xla.compile: {what} is compiled")):
            raise _value_needed(what) from error
        raise
    finally:
        torch.clear_autocast_cache()  # of tensors without values
        recorder.module().set_seed(device, seed)


def placeholder(what: str, struct: jax.ShapeDtypeStruct, device: int) -> torch.Tensor:
    """An xla tensor without a value."""
    code = dtypes.TO_CODE[dtypes.named(struct.dtype)]
    made: torch.Tensor = recorder.module().make_tensor(_NoValue(what, tuple(struct.shape)), code, device)
    return made


def record(
    what: str,
    function: Callable[..., Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[int],
    device: int,
) -> Recorded:
    """Runs ``function`` once on tensors without values; those at ``inputs`` require a gradient.

    RuntimeError where it is not pure: it needs a value, uses other tensors, writes to an argument, or exchanges values
    with other replicas.
    """
    made: list[weakref.ref[torch.Tensor]] = []
    try:
        found: Recorded = recorder.module().exclusively(device, _record, what, function, structs, inputs, device, made)
    except BaseException:
        _empty(made)  # the traceback keeps them, and nothing could run as long as it does
        raise
    if any(ref() is not None for ref in made):
        gc.collect()
        kept = [(t.dtype, list(t.shape)) for t in (ref() for ref in made) if t is not None]
        _empty(made)
        if kept:
            raise RuntimeError(
                f"{what} keeps {len(kept)} tensors after its end (the first is {kept[0][0]}{kept[0][1]}), in an "
                "attribute or a global variable: return them instead"
            )
    return found


def _empty(made: Sequence[weakref.ref[torch.Tensor]]) -> None:
    """Takes what has no value out of the tensors that are still there."""
    with torch.no_grad():
        for tensor in [t for t in (ref() for ref in made) if t is not None]:
            if not dispatcher.is_view(tensor):
                tensor.detach_()
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def _record(
    what: str,
    function: Callable[..., Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[int],
    device: int,
    made: list[weakref.ref[torch.Tensor]],
) -> Recorded:
    with _undisturbed(what, device):
        tensors = [placeholder(what, s, device) for s in structs]
        before = recorder.module().nodes_of(tensors)
        with _Arguments(what, tensors, made) as mode, torch.enable_grad() if inputs else torch.no_grad():
            given = [t.requires_grad_(i in inputs) for i, t in enumerate(tensors)]
            mode.add(given)
            leaves, tree = jax.tree.flatten(function(*given))
            _check_results(what, leaves)
            graded = tuple(i for i, t in enumerate(leaves) if t.requires_grad)
        gradients, cotangents = _gradients(what, leaves, graded, [given[i] for i in inputs], device)
        _check_unwritten(what, tensors, before)
        return _described(tensors, leaves, tree, graded, tuple(inputs), gradients, cotangents, device)


def _check_results(what: str, leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
            shown = leaf.device if isinstance(leaf, torch.Tensor) else type(leaf)
            raise TypeError(f"{what}: expected a structure of xla tensors as the result, found {shown} in it")


def _check_unwritten(what: str, tensors: Sequence[torch.Tensor], before: Sequence[Any]) -> None:
    after = recorder.module().nodes_of([t.detach() for t in tensors])
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new:
            raise RuntimeError(
                f"{what} writes to its argument {place} in place ({tensors[place].dtype}{list(tensors[place].shape)}), "
                "which a pure function must not: return the new value instead. (BatchNorm in training writes to its "
                "running statistics: track_running_stats=False, or eval().)"
            )


def _gradients(
    what: str,
    leaves: Sequence[torch.Tensor],
    graded: Sequence[int],
    inputs: Sequence[torch.Tensor],
    device: int,
) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
    """Of each input its gradient, None where it has none; and the tensors that stand for gradients of results."""
    if not graded or not inputs:
        return [None] * len(inputs), []
    results = [leaves[i] for i in graded]
    structs = [jax.ShapeDtypeStruct(tuple(t.shape), dtypes.namesake(t.dtype)) for t in results]
    cotangents = [placeholder(what, struct, device) for struct in structs]
    return list(torch.autograd.grad(results, inputs, cotangents, allow_unused=True)), cotangents


def _described(
    tensors: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    tree: Any,
    graded: tuple[int, ...],
    inputs: tuple[int, ...],
    gradients: Sequence[torch.Tensor | None],
    cotangents: Sequence[torch.Tensor],
    device: int,
) -> Recorded:
    module = recorder.module()
    wanted = [t.detach() for t in leaves] + [g for g in gradients if g is not None]
    nodes = module.nodes_of(wanted)
    leaf_nodes = module.nodes_of([t.detach() for t in [*tensors, *cotangents]])
    # Every leaf gets a number, also one that nothing reads: by being wanted, too.
    graph = module.collect_only(device, [*leaf_nodes, *nodes])
    spec = program.describe(graph, precision.current())
    _check_alone(spec)
    given = {id(node.buffer): place for place, node in enumerate(leaf_nodes)}
    buffers = graph.inputs()
    constants = [None if id(b) in given else np.asarray(b) for b in buffers]
    order = [given.get(id(b), -1) for b in buffers]
    roots = spec.roots[len(leaf_nodes) :]
    having = tuple(place for place, g in zip(inputs, gradients, strict=True) if g is not None)
    numbers = np.asarray(graph.floats()).copy(), np.asarray(graph.ints()).copy()
    parts = split(spec, order, constants, numbers, roots[: len(leaves)], roots[len(leaves) :], len(tensors))
    random = any(node.op == _SEED for node in spec.nodes)
    return Recorded(tree, len(leaves), graded, having, random, parts)


def _check_alone(spec: GraphSpec) -> None:
    for node in spec.nodes:
        if program.is_collective(node):
            raise RuntimeError(f"{node.op}: replicas cannot exchange values inside a function that is recorded once")
