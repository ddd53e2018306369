"""Shapes and dtypes of operators that have a rule here and no meta function in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Kept alive: a registration ends with its library.
_LIBRARY = torch.library.Library("aten", "IMPL", "Meta")


def _like(position: int) -> Callable[..., torch.Tensor]:
    return lambda *args, **_: torch.empty_like(args[position], device="meta")


def _geqrf(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(a), a.new_empty((*a.shape[:-2], min(a.shape[-2:])))


_RESULTS: dict[str, Callable[..., Any]] = {
    "_logcumsumexp": _like(0),
    "_sample_dirichlet": _like(0),
    "_standard_gamma_grad": _like(0),
    "binomial": _like(0),
    "geqrf": _geqrf,
    "multi_margin_loss_backward": _like(1),
    "multilabel_margin_loss_backward": _like(1),
}

for _name, _result in _RESULTS.items():
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):
        _LIBRARY.impl(_name, _result)
