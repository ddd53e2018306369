"""torch.compile's tracer (dynamo), its default backend, and how torch walks nested values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_RETRACES = "torch.compile traces the engine's own functions along with the user's: slow, and graphs break there"
# Part of torch's C module: looking them up does not import dynamo.
_STRATEGY = PrivateApi(
    "torch._C", "_dynamo.eval_frame.set_code_exec_strategy", "to keep dynamo out of the engine", _RETRACES
)
_KIND = PrivateApi("torch._C", "_dynamo.eval_frame._FrameExecStrategy", "to keep dynamo out of the engine", _RETRACES)
_ACTION = PrivateApi("torch._C", "_dynamo.eval_frame._FrameAction", "to keep dynamo out of the engine", _RETRACES)
_DISABLED = PrivateApi(
    "torch._dynamo.eval_frame",
    "DisableContext",
    "a traced graph ends at torch_xla.sync() and its like: they get the mark (_torchdynamo_disable) that this makes",
    "torch.compile traces into torch_xla.sync()",
)
_INDUCTOR = PrivateApi(
    "torch",
    "_TorchCompileInductorWrapper.__call__",
    "torch.compile's default backend says that it has no programs for xla",
    "it fails on xla tensors in words of its own",
)
_LEAVES = PrivateApi(
    "torch.utils._pytree", "tree_leaves", "the tensors in nested values", "looking for them raises, and says why"
)
_MAP = PrivateApi(
    "torch.utils._pytree", "tree_map_only", "compare_module moves nested values", "compare_module raises, and says why"
)
_FLATTEN = PrivateApi(
    "torch.utils._pytree",
    "tree_flatten",
    "loops in the graph take nested values apart as torch's control flow does",
    "they raise, and say why",
)
_UNFLATTEN = PrivateApi("torch.utils._pytree", "tree_unflatten", "as the one before", "as the one before")


_FAKE = PrivateApi(
    "torch._subclasses.fake_tensor",
    "FakeTensor.__new__",
    "a fake tensor on 'xla' is on the current device, as one on 'cuda' is: torch has a list of types for that",
    "operations of fake tensors on 'xla' and on 'xla:0', as DTensor makes them, raise",
)

_TRACE_CONTEXT = PrivateApi(
    "jax._src.config",
    "trace_context",
    "a jax function is traced again where jax's configuration differs in a way that matters to traces",
    "only the precision of products, the promotion of dtypes and the kind of random keys are looked at",
)


def wrap_fake_tensors(ours: Callable[..., Any]) -> None:
    """Making a fake tensor becomes ``ours(original, kind, mode, elem, device, *args, **kwargs)``."""
    _FAKE.wrap(ours)


def skip_frames_of(function: Any) -> None:
    """Has dynamo leave alone a function, and all that it calls."""
    strategy, kind, action = _STRATEGY.resolve_or_none(), _KIND.resolve_or_none(), _ACTION.resolve_or_none()
    if strategy is not None and kind is not None and action is not None:
        strategy(function.__code__, kind(action.SKIP, action.SKIP))


def graph_break_at(function: Any, reason: str) -> None:
    """Has a graph that dynamo traces end at a call of a function."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = reason


def wrap_default_backend(ours: Callable[..., Any]) -> None:
    """torch.compile's default backend becomes ``ours(original, compiler, graph, inputs, **options)``."""
    _INDUCTOR.wrap(ours)


def tree_leaves(value: Any) -> list[Any]:
    """What is in nested lists, tuples and dictionaries, and in classes that libraries have made known to torch."""
    found: list[Any] = _LEAVES.resolve()(value)
    return found


def tree_map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """A nested value with ``function`` of each tensor in its place."""
    return _MAP.resolve()(torch.Tensor, function, value)


def tree_flatten(value: Any) -> tuple[list[Any], Any]:
    """What is in a nested value, in order, and its structure; None counts as a leaf."""
    found: tuple[list[Any], Any] = _FLATTEN.resolve()(value)
    return found


def tree_unflatten(leaves: list[Any], structure: Any) -> Any:
    """The nested value of that structure."""
    return _UNFLATTEN.resolve()(leaves, structure)


def children(structure: Any) -> Sequence[Any]:
    """Return the structures of the parts of a nested value, by the structure that ``flatten`` gives."""
    # An attribute of older releases, which warn of it where they have the method as well.
    found: Sequence[Any] = structure.children() if hasattr(structure, "children") else structure.children_specs
    return found


def jax_trace_context() -> Hashable:
    """Return the part of jax's configuration that is in the keys of jax.jit, as this thread has it; None without."""
    context = _find_trace_context()
    return None if context is None else context()


@functools.cache
def _find_trace_context() -> Callable[[], Hashable] | None:
    # Looking the name up takes ten times as long as calling it, and each call of a pure function needs it.
    found: Callable[[], Hashable] | None = _TRACE_CONTEXT.resolve_or_none()
    return found
