"""Capture a pure torch function as a jax function: run it once on placeholders and convert the recorded graph.

    torch function ──run on placeholders──► graph ──describe──► GraphSpec ──split──► forward: results, residuals
                   ──torch's autograd─────►                                          backward: gradients of inputs

The gradient is the one that torch's autograd records, not jax's gradient of the same operations: they differ at ties,
at zeros of norms, and wherever a function defines its own backward.

In capture mode a function may use xla tensors from outside: each becomes one more argument, with its gradient.
Captures nest: a function may capture another one while it is captured itself.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.capture import capture_modes
from torch_xla._engine.capture.constant_keys import array_key
from torch_xla._engine.capture.custom_ops import CustomOpLog
from torch_xla._engine.capture.joint_graph import (
    SEED,
    ForwardBackward,
    JointGraph,
    Keep,
    save_random_only,
    split_joint_graph,
)
from torch_xla._engine.device import matmul_precision
from torch_xla._engine.execution import eager_mode
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.graph.graph_spec import GraphSpec

#: Generator state at the start of a capture. It is constant, so equal functions have equal graphs.
_BASE = 0

_recorded: LruCache[CapturedFunction] = LruCache(limit=lambda: 1024, weigh=lambda recorded: recorded.bytes)


@dataclass(frozen=True, slots=True)
class CapturedFunction:
    """A torch function as jax functions over flat arrays. A ``random`` function takes a seed (int64).

    ``tree`` is the pytree structure of the results, ``graded`` the results with a gradient, ``inputs`` the arguments
    that receive one. Captures with equal ``key`` are the same function. Captured tensors are the last arguments.
    """

    tree: Any
    results: int
    graded: tuple[int, ...]
    inputs: tuple[int, ...]
    random: bool
    key: Hashable
    graph: JointGraph
    structs: Sequence[jax.ShapeDtypeStruct]

    @property
    def bytes(self) -> int:
        """Bytes of the constants that it holds."""
        return sum(int(c.nbytes) for c in self.graph.constants if c is not None)

    def split(self, keep: Keep = save_random_only) -> ForwardBackward:
        """Return the forward and the backward function; the save policy ``keep`` chooses the residuals."""
        return split_joint_graph(self.graph, keep)


@contextmanager
def _isolated_rng(what: str, device: int) -> Iterator[None]:
    """Forbid execution in the block, and restore the random number generator after it."""
    seed = recorder.bindings().get_seed(device)
    try:
        recorder.bindings().set_seed(device, _BASE)
        with eager_mode.recording_region(eager_mode.CompileRegion(what, True, None), uncut=True):
            yield
    except RuntimeError as error:
        if str(error).startswith(("torch_xla: an xla tensor was read while", f"torch_xla.compile: {what} is compiled")):
            raise capture_modes.value_needed_error(what) from error
        raise
    finally:
        torch.clear_autocast_cache()  # it holds placeholders
        recorder.bindings().set_seed(device, seed)


def capture_function(
    what: str,
    function: Callable[..., Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[int],
    device: int,
    captured: list[torch.Tensor] | None = None,
    writable: int = 0,
) -> CapturedFunction:
    """Run ``function`` once on placeholders and return what it recorded.

    Args:
      what: Name of the function in error messages.
      structs: Shapes and dtypes of the arguments.
      inputs: Indices of the arguments that require a gradient.
      device: Ordinal of the xla device.
      captured: A list that enables capture mode: the function may use xla tensors from outside. They are appended to
        the list, and are the last arguments of the captured function.
      writable: Number of leading arguments that the function may write to in place. A write changes what the function
        reads afterwards, and nothing outside.

    Raises:
      RuntimeError: The function is not pure: it needs a value, uses tensors from outside, writes to an argument, or
        issues a collective.
    """
    made: list[weakref.ref[torch.Tensor]] = []
    try:
        found: CapturedFunction = capture_modes.run_exclusively(
            device, _record, what, function, structs, inputs, device, captured, made, writable
        )
    except BaseException:
        # The traceback keeps the placeholders alive, and they would block every later execution.
        capture_modes.drop_placeholder_values(made)
        raise
    if any(ref() is not None for ref in made):
        gc.collect()
        leaked = [(t.dtype, list(t.shape)) for t in (ref() for ref in made) if t is not None]
        capture_modes.drop_placeholder_values(made)
        if leaked:
            raise RuntimeError(
                f"{what} stores {len(leaked)} tensors that outlive the call (first: {leaked[0][0]}{leaked[0][1]}), "
                "for example in an attribute or a global variable: return them instead"
            )
    return found


def _record(
    what: str,
    function: Callable[..., Any],
    structs: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[int],
    device: int,
    captured: list[torch.Tensor] | None,
    made: list[weakref.ref[torch.Tensor]],
    writable: int,
) -> CapturedFunction:
    with _isolated_rng(what, device):
        tensors = [capture_modes.placeholder(what, s, device) for s in structs]
        before = recorder.bindings().nodes_of(tensors)
        with_gradient = bool(inputs) if captured is None else torch.is_grad_enabled()
        with ExitStack() as stack:
            mode = stack.enter_context(capture_modes.CaptureDispatchMode(what, tensors, made, captured is not None))
            if captured is not None:
                stack.enter_context(capture_modes.CaptureFunctionMode(mode))
            with torch.set_grad_enabled(with_gradient), capture_modes.without_saved_tensor_hooks():
                given = [t.requires_grad_(i in inputs) for i, t in enumerate(tensors)]
                mode.add(given)
                leaves, tree = jax.tree.flatten(function(*given))
            _check_results(what, leaves)
            leaves = [mode.resolve(t) for t in leaves]
            run = _CaptureRun(what, device, tensors, leaves, tree, tuple(inputs))
            mode.is_backward = True
            if with_gradient:
                run.graded = tuple(i for i, t in enumerate(leaves) if t.requires_grad)
                count = len(tensors)
                run.inputs += tuple(count + i for i, t in enumerate(mode.stand_ins) if t.requires_grad)
            if run.graded and run.inputs:
                run.differentiate([leaves[i] for i in run.graded], [[*given, *mode.stand_ins][i] for i in run.inputs])
            before += mode.nodes
            run.arguments += mode.stand_ins
            run.nodes, run.custom_ops = before, mode.custom_ops
            _check_unwritten(what, run.arguments, before, range(writable, len(structs)), mode.marked)
            found = run.recorded()
        if captured is not None:
            captured += mode.captured
        return found


def _check_results(what: str, leaves: Sequence[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
            shown = leaf.device if isinstance(leaf, torch.Tensor) else type(leaf)
            raise TypeError(f"{what}: expected a pytree of xla tensors as the result, found {shown}")


def _check_unwritten(
    what: str, tensors: Sequence[torch.Tensor], before: Sequence[Any], given: range, marked: dict[Any, Any]
) -> None:
    """Raise if an argument from the range ``given``, or a captured tensor after them, has a new node."""
    after = recorder.bindings().nodes_of(tensors)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if index >= given.start and old is not marked.get(new, new):
            which = f"its argument {index}" if index < given.stop else "a tensor from outside"
            raise RuntimeError(
                f"{what} writes to {which} in place ({tensors[index].dtype}{list(tensors[index].shape)}), "
                "but a pure function must not: return the new value instead. (BatchNorm in training writes to its "
                "running statistics: use track_running_stats=False or eval().)"
            )


@dataclass(eq=False)
class _CaptureRun:
    """The tensors and nodes of one run of a function on placeholders."""

    what: str
    device: int
    arguments: list[torch.Tensor]
    leaves: Sequence[torch.Tensor]
    tree: Any
    inputs: tuple[int, ...]
    graded: tuple[int, ...] = ()
    cotangents: Sequence[torch.Tensor] = ()
    gradients: Sequence[torch.Tensor | None] = ()  # of the inputs
    nodes: Sequence[Any] = ()  # of the arguments before the run: marking the sharding of one gives it another node

    custom_ops: CustomOpLog = field(default_factory=CustomOpLog)

    def differentiate(self, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        """Record the gradients of ``inputs``, given cotangents of ``results``."""
        structs = [jax.ShapeDtypeStruct(tuple(t.shape), dtypes.numpy_dtype(t.dtype)) for t in results]
        self.cotangents = [capture_modes.placeholder(self.what, struct, self.device) for struct in structs]
        capture_modes.current_capture().add(self.cotangents)
        # Backward runs outside the autocast of its forward: the dtype of forward decides that of both matmuls.
        with torch.autocast("xla", enabled=False):
            self.gradients = torch.autograd.grad(results, inputs, self.cotangents, allow_unused=True)
        capture_modes.current_capture().add([g for g in self.gradients if g is not None])

    def recorded(self) -> CapturedFunction:
        """Return the captured function, from the cache if an equal one was captured before."""
        module = recorder.bindings()
        found = [g for g in self.gradients if g is not None]
        nodes = module.nodes_of([*self.leaves, *found])
        leaf_nodes = [*self.nodes, *module.nodes_of(list(self.cotangents))]
        # Requesting the leaves as results gives each of them a value number, also those that nothing reads.
        graph = module.collect_only(self.device, [*leaf_nodes, *nodes, *self.custom_ops.nodes])
        given = {id(node.buffer): index for index, node in enumerate(leaf_nodes)}
        buffers = graph.inputs()
        constants = [None if id(b) in given else np.asarray(b) for b in buffers]
        order = tuple(given.get(id(b), -1) for b in buffers)
        numbers = np.asarray(graph.floats()).copy(), np.asarray(graph.ints()).copy()
        having = tuple(i for i, g in zip(self.inputs, self.gradients or [None] * len(self.inputs), strict=True)
                       if g is not None)  # fmt: skip
        values = [array_key(c) for c in (*numbers, *constants) if c is not None]
        key = (graph.key, self.tree, len(self.arguments), len(self.leaves), order, self.graded, having, *values,
               matmul_precision.current_precision(), self.custom_ops.key)  # fmt: skip
        known = _recorded.get(key)
        if known is None:
            spec = graph_spec.describe_graph(graph, matmul_precision.current_precision())
            _check_no_collectives(spec)
            roots = spec.roots[len(leaf_nodes) :]
            results, gradients = roots[: len(self.leaves)], roots[len(self.leaves) : len(nodes)]
            calls = self.custom_ops.calls(roots[len(nodes) :])
            joint = JointGraph(spec, order, constants, numbers, results, gradients, len(self.arguments), _BASE, calls)
            structs = [
                jax.ShapeDtypeStruct(tuple(t.shape), dtypes.numpy_dtype(t.dtype))
                for t in (*self.arguments, *self.leaves)
            ]
            random = any(node.op == SEED for node in spec.nodes)
            known = CapturedFunction(self.tree, len(self.leaves), self.graded, having, random, key, joint, structs)
            _recorded.put(key, known)
        return known


def _check_no_collectives(spec: GraphSpec) -> None:
    for node in spec.nodes:
        if graph_spec.is_collective(node):
            raise RuntimeError(f"{node.op}: collectives are not supported in a captured function")
