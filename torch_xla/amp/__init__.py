"""Mixed precision: ``autocast``, ``GradScaler`` and optimizers that skip steps without a host sync (``syncfree``)."""

from __future__ import annotations

from torch_xla.amp import syncfree
from torch_xla.amp.autocast_mode import autocast
from torch_xla.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "syncfree"]
