"""Backward passes of xla run on the thread that asks for them; those of other devices as torch runs them.

Autograd gives each device a thread of its own. Recording gains nothing from that, and waking the thread costs as much
as recording forty ops. torch's switch (``set_multithreading_enabled``) is for the calling thread and all devices, so it
is set for the length of a pass, and only where what is differentiated is on xla. All passes that Python starts go
through ``_engine_run_backward``, which is private to torch; ``torch.compiler`` wraps it in the same way (checked on
2.13). A pass that goes past it works, on a thread of the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def install() -> None:
    """Wraps what torch.autograd.backward and grad call, once."""
    original: Callable[..., Any] = torch.autograd.graph._engine_run_backward
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in outputs):
            return original(outputs, *args, **kwargs)
        with torch.autograd.set_multithreading_enabled(False):
            return original(outputs, *args, **kwargs)

    run_backward._torch_xla = True  # type: ignore[attr-defined]
    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
