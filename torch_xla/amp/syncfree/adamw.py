"""AdamW with its step count on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torch_xla.amp.syncfree.adam import AdamBase


class AdamW(AdamBase, torch.optim.AdamW):
    """torch.optim.AdamW whose step takes ``found_inf``. Shapes, options and state are torch's."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, capturable=True)
