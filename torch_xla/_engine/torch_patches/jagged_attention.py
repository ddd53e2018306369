"""Compute scaled_dot_product_attention of jagged nested tensors on xla as attention of a padded batch.

On CUDA torch has kernels for them. Elsewhere it computes the sequences one by one, as a strided nested tensor, which
does not exist on xla.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_xla._engine.base import import_hooks
from torch_xla._engine.compat import nested


def patch_jagged_attention() -> None:
    """Wrap the function. Called once, on import."""
    import_hooks.on_import(nested.MODULE, lambda _: nested.wrap_attention(_attend))


def _attend(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attend within each sequence: ``query`` [batch, heads, length of the sequence, size], and likewise the others."""
    given = (query, key, value)
    if (
        query.device.type != "xla"
        or not all(t.is_nested and t.dim() == 4 for t in given)
        or nested.ragged_dim(query) == 1
    ):
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    # No NotImplementedError: torch catches it, and calls the operator for dense tensors.
    if attn_mask is not None:
        raise RuntimeError(
            "scaled_dot_product_attention: nested tensors on xla take no attn_mask; use is_causal=True, or pad the "
            "sequences with to_padded_tensor()"
        )
    if any(nested.has_gaps(t) for t in given):
        raise RuntimeError(
            "scaled_dot_product_attention: nested tensors with gaps (lengths=) are not supported on xla; make them of "
            "sequences without gaps"
        )
    padded_query, padded_key, padded_value = (_pad(t) for t in given)
    is_given = _is_within(key)[:, None, None, :]
    if is_causal:
        row, column = (torch.arange(nested.longest(t), device=query.device) for t in (query, key))
        is_given = is_given & (column <= row[:, None])
    out = F.scaled_dot_product_attention(
        padded_query, padded_key, padded_value, is_given, dropout_p, False, scale=scale, enable_gqa=enable_gqa
    )
    by_row = out.transpose(1, 2)  # [batch, length, heads, size]
    total = query.transpose(1, 2).values().shape[0]
    rows: Tensor = _Concatenate.apply(by_row.flatten(2), nested.offsets(query), total)  # type: ignore[no-untyped-call]
    return nested.with_rows(query, rows.reshape(total, *by_row.shape[2:])).transpose(1, 2)


class _Concatenate(torch.autograd.Function):
    """Concatenate the sequences of [batch, length, size] without their padding; torch's operator has no gradient."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, offsets: Tensor, total: int) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.length = padded.shape[1]
        return nested.join_rows(padded, offsets, total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return nested.pad_rows(gradient, ctx.saved_tensors[0], ctx.length), None, None


class _Pad(torch.autograd.Function):
    """Pad sequences, [rows, size], to [batch, length, size]; torch's operator has no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, offsets: Tensor, length: int) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.total = rows.shape[0]
        return nested.pad_rows(rows, offsets, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return nested.join_rows(gradient, ctx.saved_tensors[0], ctx.total), None, None


def _pad(sequences: Tensor) -> Tensor:
    """Return [batch, heads, longest, size]."""
    values = sequences.transpose(1, 2).values()
    length = nested.longest(sequences)
    flat: Tensor = _Pad.apply(values.flatten(1), nested.offsets(sequences), length)  # type: ignore[no-untyped-call]
    return flat.reshape(*flat.shape[:2], *values.shape[1:]).transpose(1, 2)


def _is_within(sequences: Tensor) -> Tensor:
    """Return [batch, longest]: whether a sequence has a position."""
    lengths = nested.offsets(sequences).diff()
    place = torch.arange(nested.longest(sequences), device=lengths.device)
    return place < lengths[:, None]
