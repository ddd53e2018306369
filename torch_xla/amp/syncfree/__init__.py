"""Drop-in optimizers whose step can be called off by a tensor on the device; see their base class in optimizer.py."""

from __future__ import annotations

from torch_xla.amp.syncfree.adam import Adam
from torch_xla.amp.syncfree.adamw import AdamW
from torch_xla.amp.syncfree.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
