"""torch's control flow: cond, while_loop, map, scan and associative_scan, of which torch makes all but two public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_READS = "it runs step by step, and reads values"
_OPS = {
    "cond": PrivateApi("torch._higher_order_ops.cond", "cond_op", "torch.cond is one operation of the graph", _READS),
    "while_loop": PrivateApi(
        "torch._higher_order_ops.while_loop", "while_loop_op", "while_loop is one operation of the graph", _READS
    ),
    "map": PrivateApi("torch._higher_order_ops.map", "map_impl", "map is one operation of the graph", _READS),
    "scan": PrivateApi("torch._higher_order_ops.scan", "scan_op", "scan is one operation of the graph", _READS),
    "associative_scan": PrivateApi(
        "torch._higher_order_ops.associative_scan",
        "associative_scan_op",
        "associative_scan is one operation of the graph",
        _READS,
    ),
}
_RUN = PrivateApi(
    "torch._higher_order_ops.utils",
    "_hop_compile_and_call",
    "control flow on xla is called without dynamo, which would trace it anew at each call",
    "each call of torch.cond and its like costs the host a fraction of a second",
    since="2.13",
)
_MAP = PrivateApi("torch._higher_order_ops.map", "map", "map on xla is called without dynamo", "it is slow")
_MAP_TOO = PrivateApi("torch._higher_order_ops", "map", "as the one before", "as the one before")
_ASSOCIATIVE = PrivateApi(
    "torch._higher_order_ops.associative_scan",
    "associative_scan",
    "associative_scan in both of its modes on xla",
    "combine_mode='pointwise' is refused",
)
_ASSOCIATIVE_TOO = PrivateApi("torch._higher_order_ops", "associative_scan", "as the one before", "as the one before")
_MODE = PrivateApi(
    "torch.utils._python_dispatch",
    "_get_current_dispatch_mode",
    "control flow that a tracer looks at is left to it",
    "a tracer sees what control flow on xla is made of",
)
#: The functions that torch hands to dynamo, by name, and the operators that they only call.
_CALLERS = {"_cond_op_wrapper": "cond", "_while_loop_op_wrapper": "while_loop"}


def register_kernels(name: str, kernel: Callable[..., Any]) -> None:
    """What an operator does on xla: ``kernel(torch's own, *args, **kwargs)``. Warns where it is missing."""
    found = _OPS[name].resolve_or_none()
    if found is None:
        _OPS[name].warn_missing()
        return
    key = torch._C.DispatchKey
    own = {k: found.py_kernels.get(k) for k in (key.Autograd, key.CompositeExplicitAutograd)}
    for at, original in (
        (key.AutogradXLA, own[key.Autograd]),
        (key.XLA, own[key.CompositeExplicitAutograd]),
    ):
        found.py_impl(at)(_wrap_kernel(kernel, original))


def _wrap_kernel(kernel: Callable[..., Any], original: Any) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return kernel(original, *args, **kwargs)

    return called


def wrap_run(ours: Callable[..., Any]) -> None:
    """What has dynamo trace a call of control flow, and runs it, becomes ``ours(original, fn, args, kwargs=None)``."""
    _RUN.wrap(ours)


def wrapped_operator(function: Callable[..., Any]) -> str | None:
    """The operator that a function which dynamo is to trace only calls, with the arguments that it is given."""
    return _CALLERS.get(getattr(function, "__name__", ""))


def wrap_map(ours: Callable[..., Any]) -> None:
    """``map`` becomes ``ours(original, f, xs, *args)``."""
    _MAP.wrap(ours)
    _MAP_TOO.wrap(ours)


def wrap_associative_scan(ours: Callable[..., Any]) -> None:
    """``associative_scan`` becomes ``ours(original, ...)``."""
    _ASSOCIATIVE.wrap(ours)
    _ASSOCIATIVE_TOO.wrap(ours)


def current_dispatch_mode() -> Any:
    """The innermost mode below autograd on this thread, or None."""
    found = _MODE.resolve_or_none()
    return None if found is None else found()
