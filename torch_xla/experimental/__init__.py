"""Features whose interface may change: eager mode, and names that upstream calls experimental."""

from __future__ import annotations

from torch_xla.experimental.eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]
