"""Backward passes of xla run on the thread that asks for them; those of other devices as torch runs them.

Autograd gives each device a thread of its own. Recording gains nothing from that, and waking the thread costs as much
as recording forty ops. torch's switch (``set_multithreading_enabled``) is for the calling thread and all devices, so it
is set for the length of a pass, and only where what is differentiated is on xla. All passes that Python starts go
through one function of torch's (compat/modules.py). A pass that goes past it works, on a thread of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.base.compat import modules


def install() -> None:
    """Wraps what torch.autograd.backward and grad call, once."""
    modules.wrap_backward(_run_backward)


def _run_backward(original: Callable[..., Any], outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    if not any(isinstance(t, torch.Tensor) and t.device.type == "xla" for t in outputs):
        return original(outputs, *args, **kwargs)
    with torch.autograd.set_multithreading_enabled(False):
        return original(outputs, *args, **kwargs)
