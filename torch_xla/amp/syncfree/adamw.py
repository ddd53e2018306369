"""AdamW with its step count on the device."""

from __future__ import annotations

import torch

from torch_xla.amp.syncfree.adam import AdamBase


class AdamW(AdamBase, torch.optim.AdamW):
    """torch.optim.AdamW whose step takes ``found_inf``. Shapes, options and state are torch's."""

    WEIGHT_DECAY = 1e-2
