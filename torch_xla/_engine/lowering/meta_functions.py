"""Meta functions (shape and dtype inference) of operators that have a lowering rule but no meta kernel in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.compat import dispatcher

#: Module-level, because registrations end when their library is destroyed.
_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")


def _empty_like(position: int) -> Callable[..., torch.Tensor]:
    return lambda *args, **_: torch.empty_like(args[position], device="meta")


def _geqrf(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(a), a.new_empty((*a.shape[:-2], min(a.shape[-2:])))


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, times: torch.Tensor, lengths: torch.Tensor, blank: int = 0, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    steps, batch, labels = log_probs.shape
    if not 0 <= blank < labels:
        raise RuntimeError("blank must be in label range")
    for name, given in (("input_lengths", times), ("target_lengths", lengths)):
        if given.numel() != batch:
            raise RuntimeError(f"{name} must be of size batch_size: ctc_loss got {given.numel()} for {batch} rows")
    if targets.shape[0] != batch:
        raise RuntimeError(f"ctc_loss: expected targets for {batch} rows, got shape {list(targets.shape)}")
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[1] + 1)


def _lstsq(
    a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """Infer the results of the drivers whose result sizes do not depend on values; others fall back to the CPU."""
    if a.dim() < 2 or not 0 <= a.dim() - b.dim() <= 1 or driver not in (None, "gels", "gelsd", "gelss", "gelsy"):
        raise RuntimeError("torch.linalg.lstsq: invalid shapes or driver")
    batch, (rows, columns), dtype = a.shape[:-2], a.shape[-2:], a.dtype.to_real()
    vectors = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    right = () if vectors else b.shape[-1:]
    if b.shape != (*batch, rows, *right) or b.dtype != a.dtype or not (a.is_floating_point() or a.is_complex()):
        raise RuntimeError("torch.linalg.lstsq: incompatible operand shapes or dtypes")
    has_residuals = driver == "gels" and rows > columns
    return (
        a.new_empty((*batch, columns, *right)),
        a.new_empty((*batch, *(right or (1,))) if has_residuals else 0, dtype=dtype),
        a.new_empty(0 if driver == "gels" else batch, dtype=torch.int64),
        a.new_empty((*batch, min(rows, columns)) if driver in ("gelsd", "gelss") else 0, dtype=dtype),
    )


def _window(length: int, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    if length < 0:
        raise RuntimeError(f"kaiser_window requires non-negative window_length, got window_length={length}")
    return torch.empty(length, dtype=dtype, device="meta")


def _join_sequences(dense: torch.Tensor, offsets: list[torch.Tensor], total: int | None = None) -> torch.Tensor:
    if total is None or len(offsets) != 1 or offsets[0].shape != (dense.shape[0] + 1,):
        raise RuntimeError("_padded_dense_to_jagged_forward: expected total_L and one tensor of offsets")
    return dense.new_empty((total, *dense.shape[2:]))


def _scaled_grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *_: Any,
) -> torch.Tensor:
    """Infer the result for torch.compile; when the call is recorded, the recorder checks operands and scales."""
    if offs is None and not a.dim() == b.dim() == 3:
        raise ValueError("Have to provide offsets if there is a 2d matrix")
    groups = () if a.dim() != b.dim() else (b.shape[0],) if offs is None else (offs.shape[0],)
    return a.new_empty((*groups, a.shape[-2], b.shape[-1]), dtype=out_dtype or torch.bfloat16)


_RESULTS: dict[str, Callable[..., Any]] = {
    "_ctc_loss.Tensor": _ctc_loss,
    "_ctc_loss_backward.Tensor": _empty_like(1),
    "_logcumsumexp": _empty_like(0),
    "_padded_dense_to_jagged_forward": _join_sequences,
    "_sample_dirichlet": _empty_like(0),
    "_scaled_grouped_mm_v2": _scaled_grouped_mm,
    "_standard_gamma": _empty_like(0),
    "_standard_gamma_grad": _empty_like(0),
    "binomial": _empty_like(0),
    "geqrf": _geqrf,
    "linalg_lstsq": _lstsq,
    "kaiser_window": _window,
    "kaiser_window.beta": _window,
    "kaiser_window.periodic": _window,
    "multi_margin_loss_backward": _empty_like(1),
    "multilabel_margin_loss_backward": _empty_like(1),
}

for _name, _result in _RESULTS.items():
    if not dispatcher.has_kernel(f"aten::{_name}", "Meta"):
        _LIBRARY.impl(_name, _result)
