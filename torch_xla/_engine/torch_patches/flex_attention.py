"""Make torch.nn.attention.flex_attention.flex_attention work on xla tensors.

A direct call is recorded as one node without dynamo. In torch.compile dynamo traces the function, and the backend calls
the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.base import import_hooks
from torch_xla._engine.capture import control_flow
from torch_xla._engine.capture import flex_attention as captured
from torch_xla._engine.compat import flex_attention as private


def patch_flex_attention() -> None:
    """Register the kernels and wrap the functions. Called once, on import."""
    private.register_kernels(_attend, _attend_backward, _attend_in_autocast)
    wrap = lambda _: private.wrap_functions(_validate_device, _flex_attention)
    import_hooks.on_import("torch.nn.attention.flex_attention", wrap)


def _attend(
    original: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, ...]:
    buffers = score_buffers, mask_buffers
    if not control_flow.should_record(query, key, value, *buffers):
        return original(query, key, value, score_mod, block_mask, scale, kernel_options, *buffers)  # type: ignore[no-any-return]
    needs_grad = (lambda t: t.requires_grad) if torch.is_grad_enabled() else None
    call = captured.capture_call(query, score_mod, block_mask[-1], scale, *buffers, needs_grad)
    return captured.attend(call, query, key, value)


def _attend_backward(
    original: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_logsumexp: torch.Tensor | None,
    fw_graph: Callable[..., Any],
    joint_graph: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Return the gradients of query, key, value, and of each buffer: the operator that torch.compile's graphs call."""
    buffers = score_buffers, mask_buffers
    if not control_flow.should_record(query, key, value, *buffers):
        return original(  # type: ignore[no-any-return]
            query, key, value, out, logsumexp, grad_out, grad_logsumexp, fw_graph, joint_graph, block_mask, scale,
            kernel_options, *buffers,
        )  # fmt: skip
    call = captured.capture_call(query, fw_graph, block_mask[-1], scale, *buffers, torch.is_floating_point)
    found = iter(captured.attend_backward(call, query, key, value, [grad_out, grad_logsumexp]))
    gradients = [next(found) for _ in range(3)]
    return (*gradients, tuple(next(found) if isinstance(b, torch.Tensor) else None for b in score_buffers))


def _attend_in_autocast(
    operator: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any
) -> tuple[torch.Tensor, ...]:
    dtype = torch.get_autocast_dtype("xla")
    given = [t if t.dtype == torch.float64 else t.to(dtype) for t in (query, key, value)]
    with private.exclude_autocast():
        return operator(*given, *args)  # type: ignore[no-any-return]


def _validate_device(original: Callable[..., Any], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if query.device.type != "xla":
        original(query, key, value)


def _flex_attention(original: Callable[..., Any], query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling() or query.device.type != "xla" or not control_flow.should_record(query):
        return original(query, *args, **kwargs)
    return private.without_dynamo(original)(query, *args, **kwargs)
