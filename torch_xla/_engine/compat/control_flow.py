"""Private names of torch's control flow operators: cond, while_loop, map, scan and associative_scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_READS = "it runs in Python, step by step, and reads values from the device"
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
    "control flow on xla bypasses dynamo, which would trace it again at each call",
    "each call of torch.cond etc. costs the host a fraction of a second",
    since="2.13",
)
_MAP = PrivateApi("torch._higher_order_ops.map", "map", "map on xla bypasses dynamo", "each call is slow")
_MAP_TOO = PrivateApi("torch._higher_order_ops", "map", "map on xla bypasses dynamo", "each call is slow")
_ASSOCIATIVE = PrivateApi(
    "torch._higher_order_ops.associative_scan",
    "associative_scan",
    "associative_scan on xla with both values of combine_mode",
    "combine_mode='pointwise' raises",
)
_ASSOCIATIVE_TOO = PrivateApi(
    "torch._higher_order_ops",
    "associative_scan",
    "associative_scan on xla with both values of combine_mode",
    "combine_mode='pointwise' raises",
)
_MODE = PrivateApi(
    "torch.utils._python_dispatch",
    "_get_current_dispatch_mode",
    "detection of tracers, to which control flow is left",
    "a tracer sees the operations inside control flow on xla",
)
#: Name of a function that torch passes to dynamo -> the operator that it calls.
_CALLERS = {"_cond_op_wrapper": "cond", "_while_loop_op_wrapper": "while_loop"}


def register_kernels(name: str, kernel: Callable[..., Any]) -> None:
    """Set an operator's xla kernel: ``kernel(original, *args, **kwargs)``. Warns if the operator is missing."""
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
    # torch passes calls below the autocast of some devices only. DispatchKey does not list this key.
    found.fallthrough(torch._C._dispatch_key_parse("AutocastXLA"))


def _wrap_kernel(kernel: Callable[..., Any], original: Any) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return kernel(original, *args, **kwargs)

    return called


def wrap_run(wrapper: Callable[..., Any]) -> None:
    """Wrap the function that traces a control flow call with dynamo: ``wrapper(original, fn, args, kwargs=None)``."""
    _RUN.wrap(wrapper)


def wrapped_operator(function: Callable[..., Any]) -> str | None:
    """Return the operator that a function for dynamo calls with its unchanged arguments; None if it does more."""
    return _CALLERS.get(getattr(function, "__name__", ""))


def wrap_map(wrapper: Callable[..., Any]) -> None:
    """Wrap ``map``: ``wrapper(original, f, xs, *args)``."""
    _MAP.wrap(wrapper)
    _MAP_TOO.wrap(wrapper)


def wrap_associative_scan(wrapper: Callable[..., Any]) -> None:
    """Wrap ``associative_scan``: ``wrapper(original, ...)``."""
    _ASSOCIATIVE.wrap(wrapper)
    _ASSOCIATIVE_TOO.wrap(wrapper)


def current_dispatch_mode() -> Any:
    """Return the innermost dispatch mode of this thread, or None."""
    found = _MODE.resolve_or_none()
    return None if found is None else found()
