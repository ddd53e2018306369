"""Optimizers whose step is skipped by a tensor on the device; drop-in replacements for torch's. See optimizer.py."""

from __future__ import annotations

from torch_xla.amp.syncfree.adam import Adam
from torch_xla.amp.syncfree.adamw import AdamW
from torch_xla.amp.syncfree.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
