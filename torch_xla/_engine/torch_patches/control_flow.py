"""Register xla kernels for torch's control flow (cond, while_loop, map, scan, associative_scan).

Direct calls, outside torch.compile, bypass dynamo, which would trace them again at each call. Calls under a tracer are
left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture import control_flow
from torch_xla._engine.compat import control_flow as private


def register_control_flow() -> None:
    """Register the kernels and wrap the functions. Called once, on import."""
    private.register_kernels("cond", _cond)
    private.register_kernels("while_loop", _while_loop)
    private.register_kernels("map", _map)
    private.register_kernels("scan", _scan)
    private.register_kernels("associative_scan", _associative)
    private.wrap_run(_call_patched)
    private.wrap_map(_whole_map)
    private.wrap_associative_scan(_associative_scan)


def _cond(original: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any]) -> Any:
    if (
        not isinstance(pred, torch.Tensor)
        or pred.device.type != "xla"
        or not control_flow.should_record(pred, operands)
    ):
        return original(pred, true_fn, false_fn, operands)
    return control_flow.cond(pred, true_fn, false_fn, operands)


def _while_loop(original: Any, cond_fn: Any, body_fn: Any, carried: Any, additional: Any, **options: Any) -> Any:
    if options or not control_flow.should_record(carried, additional):
        return original(cond_fn, body_fn, carried, additional, **options)
    return control_flow.while_loop(cond_fn, body_fn, carried, additional)


def _map(original: Any, function: Any, xs: Sequence[Any], args: Sequence[Any]) -> Any:
    if not control_flow.should_record(xs, args):
        return original(function, xs, args)
    return control_flow.map_slices(lambda x, *rest: function(*x, *rest), list(xs), args)


def _scan(original: Any, combine: Any, init: Any, xs: Any, additional_inputs: Any) -> Any:
    if not control_flow.should_record(init, xs, additional_inputs):
        return original(combine, init, xs, additional_inputs)
    return control_flow.scan_flat(combine, init, xs, additional_inputs)


def _associative(original: Any, combine: Any, xs: Any, additional_inputs: Any) -> Any:
    if not control_flow.should_record(xs, additional_inputs):
        return original(combine, xs, additional_inputs)
    return control_flow.associative_scan_flat(combine, xs, additional_inputs)


def _call_patched(original: Callable[..., Any], function: Any, args: Sequence[Any], kwargs: Any = None) -> Any:
    kernel = _DIRECT.get(private.wrapped_operator(function) or "")
    if kernel is None or kwargs or not _is_flat(args) or not control_flow.should_record(*args):
        return original(function, args, kwargs)
    return kernel(function, *args)


_DIRECT: dict[str, Callable[..., Any]] = {"cond": _cond, "while_loop": _while_loop}


def _is_flat(args: Sequence[Any]) -> bool:
    return not any(isinstance(item, (tuple, list, dict)) for a in args if isinstance(a, (tuple, list)) for item in a)


def _whole_map(original: Callable[..., Any], f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    if torch.compiler.is_compiling() or not control_flow.should_record(xs, args):
        return original(f, xs, *args)
    return control_flow.map_slices(f, xs, args)


def _associative_scan(
    original: Callable[..., Any],
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    modes = ("pointwise", "generic")
    if torch.compiler.is_compiling() or combine_mode not in modes or not control_flow.should_record(xs):
        return original(combine_fn, xs, dim, reverse, combine_mode)
    return control_flow.associative_scan(combine_fn, xs, dim, reverse)
