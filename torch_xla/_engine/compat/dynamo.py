"""Private names of torch.compile's tracer (dynamo), its default backend, torch's pytrees and jax's trace context."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_RETRACES = "torch.compile traces the engine's functions along with the user's: slow, with graph breaks"
# Part of torch's C module: looking them up does not import dynamo.
_STRATEGY = PrivateApi(
    "torch._C", "_dynamo.eval_frame.set_code_exec_strategy", "to keep dynamo out of the engine", _RETRACES
)
_KIND = PrivateApi("torch._C", "_dynamo.eval_frame._FrameExecStrategy", "to keep dynamo out of the engine", _RETRACES)
_ACTION = PrivateApi("torch._C", "_dynamo.eval_frame._FrameAction", "to keep dynamo out of the engine", _RETRACES)
_DISABLED = PrivateApi(
    "torch._dynamo.eval_frame",
    "DisableContext",
    "a graph break at torch_xla.sync() etc., by the attribute _torchdynamo_disable",
    "torch.compile traces into torch_xla.sync()",
)
_INDUCTOR = PrivateApi(
    "torch",
    "_TorchCompileInductorWrapper.__call__",
    "torch.compile without backend= uses openxla for graphs on xla",
    "the default backend fails on xla tensors: pass backend='openxla'",
)
_BACKENDS = PrivateApi(
    "torch._dynamo", "lookup_backend", _INDUCTOR.purpose, "torch.compile without backend= raises on xla tensors"
)
_SET_CAPTURABLE = PrivateApi(
    "torch._dynamo.variables.optimizer",
    "OptimizerVariable._set_capturable",
    "compiled optimizers keep their step counts on xla, as those on cuda do",
    "compiled optimizers run operation by operation unless they are created with capturable=True",
)
_LEAVES = PrivateApi(
    "torch.utils._pytree", "tree_leaves", "the tensors in pytrees", "searching pytrees for tensors raises"
)
_MAP = PrivateApi("torch.utils._pytree", "tree_map_only", "compare_module moves pytrees", "compare_module raises")
_FLATTEN = PrivateApi(
    "torch.utils._pytree",
    "tree_flatten",
    "loops in the graph flatten pytrees as torch's control flow does",
    "loops in the graph raise",
)
_UNFLATTEN = PrivateApi("torch.utils._pytree", "tree_unflatten", _FLATTEN.purpose, _FLATTEN.without)


_FAKE = PrivateApi(
    "torch._subclasses.fake_tensor",
    "FakeTensor.__new__",
    "fake tensors on 'xla' are on the current device, as those on 'cuda' are",
    "operations on fake tensors of both 'xla' and 'xla:0', as in DTensor, raise",
)

_TRACE_CONTEXT = PrivateApi(
    "jax._src.config",
    "trace_context",
    "a jax function is traced again if jax's trace context has changed",
    "only matmul precision, dtype promotion and the type of random keys are compared",
)


def wrap_fake_tensors(wrapper: Callable[..., Any]) -> None:
    """Wrap the constructor of fake tensors: ``wrapper(original, kind, mode, elem, device, *args, **kwargs)``."""
    _FAKE.wrap(wrapper)


def skip_frames_of(function: Any) -> None:
    """Exclude a function, and everything that it calls, from tracing by dynamo."""
    strategy, kind, action = _STRATEGY.resolve_or_none(), _KIND.resolve_or_none(), _ACTION.resolve_or_none()
    if strategy is not None and kind is not None and action is not None:
        strategy(function.__code__, kind(action.SKIP, action.SKIP))


def graph_break_at(function: Any, reason: str) -> None:
    """Make dynamo end a traced graph at calls of a function."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = reason


def wrap_default_backend(wrapper: Callable[..., Any]) -> None:
    """Wrap torch.compile's default backend: ``wrapper(original, compiler, graph, inputs, **options)``."""
    _INDUCTOR.wrap(wrapper)


def wrap_set_capturable(wrapper: Callable[..., Any]) -> None:
    """Wrap what dynamo does before it traces an optimizer: ``wrapper(original, variable, tx)``.

    ``variable.value`` is the optimizer. Call it when dynamo has been imported.
    """
    _SET_CAPTURABLE.wrap(wrapper)


def backend(name: str) -> Callable[..., Any]:
    """Return a registered backend of torch.compile."""
    found: Callable[..., Any] = _BACKENDS.resolve()(name)
    return found


def tree_leaves(value: Any) -> list[Any]:
    """Return the leaves of a pytree, including classes that libraries have registered with torch."""
    found: list[Any] = _LEAVES.resolve()(value)
    return found


def tree_map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to each tensor of a pytree."""
    return _MAP.resolve()(torch.Tensor, function, value)


def tree_flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a pytree in order, and its structure; None counts as a leaf."""
    found: tuple[list[Any], Any] = _FLATTEN.resolve()(value)
    return found


def tree_unflatten(leaves: list[Any], structure: Any) -> Any:
    """Build a pytree of the given structure."""
    return _UNFLATTEN.resolve()(leaves, structure)


def children(structure: Any) -> Sequence[Any]:
    """Return the structures of the children of a pytree structure from ``tree_flatten``."""
    # Older releases have an attribute; releases with both warn about the attribute.
    found: Sequence[Any] = structure.children() if hasattr(structure, "children") else structure.children_specs
    return found


def jax_trace_context() -> Hashable:
    """Return this thread's jax configuration that is part of the keys of jax.jit; None if jax does not expose it."""
    context = _find_trace_context()
    return None if context is None else context()


@functools.cache
def _find_trace_context() -> Callable[[], Hashable] | None:
    # Cached: the lookup takes ten times as long as the call, and each call of a pure function needs it.
    found: Callable[[], Hashable] | None = _TRACE_CONTEXT.resolve_or_none()
    return found
