"""Private names of torch's jagged nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_ATTENTION = PrivateApi(
    "torch.nested._internal.ops",
    "jagged_scaled_dot_product_attention",
    "scaled_dot_product_attention of jagged nested tensors on xla",
    "scaled_dot_product_attention of jagged nested tensors raises on xla",
)

_VIEW = PrivateApi(
    "torch.nested._internal.nested_tensor",
    "nested_view_from_values_offsets_lengths",
    "scaled_dot_product_attention of jagged nested tensors on xla",
    "scaled_dot_product_attention of jagged nested tensors raises on xla",
)


def wrap_attention(wrapper: Callable[..., Any]) -> None:
    """Wrap the attention of nested tensors; call it after the import of ``MODULE``."""
    _ATTENTION.wrap(wrapper)


#: The module that has the functions of nested tensors; torch imports it for the first one.
MODULE = _ATTENTION.module


def ragged_dim(nested: torch.Tensor) -> int:
    """Return the dimension whose size differs between the sequences."""
    return int(nested._ragged_idx)  # type: ignore[attr-defined]


def offsets(nested: torch.Tensor) -> torch.Tensor:
    """Return the first row of each sequence, and the number of rows."""
    return nested._offsets  # type: ignore[attr-defined,no-any-return]


def has_gaps(nested: torch.Tensor) -> bool:
    """Whether there are rows between the sequences."""
    return nested._lengths is not None  # type: ignore[attr-defined]


def longest(nested: torch.Tensor) -> int:
    """Return the length of the longest sequence; reads the offsets from the device if torch does not know it."""
    return int(nested._get_max_seqlen())  # type: ignore[attr-defined]


def with_rows(nested: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor of the lengths of ``nested``, with other rows, [rows, ...]."""
    lengths = {"min_seqlen": nested._maybe_min_seqlen, "max_seqlen": longest(nested)}  # type: ignore[attr-defined]
    return _VIEW.resolve()(rows, offsets(nested), None, **lengths)  # type: ignore[no-any-return]


def pad_rows(rows: torch.Tensor, offsets: torch.Tensor, length: int) -> torch.Tensor:
    """Return [sequences, length, size] for [rows, size], with zeros after each sequence."""
    return torch.ops.aten._jagged_to_padded_dense_forward(rows, [offsets], [length], 0.0)  # type: ignore[no-any-return]


def join_rows(padded: torch.Tensor, offsets: torch.Tensor, total: int) -> torch.Tensor:
    """Return [rows, size] for [sequences, length, size]: the inverse of ``pad_rows``."""
    return torch.ops.aten._padded_dense_to_jagged_forward(padded, [offsets], total)  # type: ignore[no-any-return]
