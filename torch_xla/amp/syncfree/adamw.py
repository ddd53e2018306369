"""AdamW with its step count on the device."""

from __future__ import annotations

import torch

from torch_xla.amp.syncfree.adam import AdamBase


class AdamW(AdamBase, torch.optim.AdamW):
    """torch.optim.AdamW whose step takes ``found_inf``. Shapes, options and state are torch's.

    Examples:
      >>> import torch
      >>> from torch_xla.amp import syncfree
      >>> weight = torch.nn.Parameter(torch.ones(2, device="xla"))
      >>> optimizer = syncfree.AdamW([weight], lr=0.1)
      >>> weight.sum().backward()
      >>> optimizer.step(found_inf=torch.ones(1, device="xla"))  # skipped on the device
      >>> weight.tolist()
      [1.0, 1.0]
    """

    WEIGHT_DECAY = 1e-2
