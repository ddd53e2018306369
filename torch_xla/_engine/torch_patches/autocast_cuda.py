"""Warn once of ``torch.autocast("cuda")`` in a process that computes on xla and has no CUDA device: it does nothing.

The check runs when an autocast object is created, not for each op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.compat import torch_modules
from torch_xla._engine.device import devices

_warned = False


def patch_autocast() -> None:
    """Wrap the constructor of ``torch.autocast``, which ``torch.cuda.amp.autocast`` inherits."""
    torch_modules.wrap_autocast(_create)


def _create(original: Callable[..., None], context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
    global _warned
    original(context, device_type, *args, **kwargs)
    if _warned or device_type != "cuda" or torch.compiler.is_compiling():
        return
    requested = args[1] if len(args) > 1 else kwargs.get("enabled", True)
    if requested and devices.backend_started() and not torch.cuda.is_available():
        _warned = True
        messages.warn(
            messages.compose(
                f"torch.autocast('cuda') at {user_frames.user_line()} has no effect on xla tensors",
                fix="use torch.autocast('xla', dtype=torch.bfloat16)",
                page="autocast-cuda",
            )
        )
