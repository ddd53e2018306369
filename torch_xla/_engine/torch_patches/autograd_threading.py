"""Backward passes of xla run on the thread that asks for them; those of other devices as torch runs them.

Autograd gives each device a thread of its own. Recording gains nothing from that, and waking the thread costs as much
as recording forty ops. torch's switch (``set_multithreading_enabled``) is for the calling thread and all devices, so it
is set for the length of a pass, and only where what is differentiated is on xla. All passes that Python starts go
through one function of torch's (compat/modules.py). A pass that goes past it works, on a thread of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine.compat import torch_modules


def patch_backward() -> None:
    """Wraps what torch.autograd.backward and grad call, once."""
    switch = torch_modules.autograd_multithreading()
    if switch is None:
        return
    threads_on, set_threads = switch

    # Written for its own cost, which every pass pays: it was a tenth of a small one with any(...) and a `with`.
    def run_backward(original: Callable[..., Any], outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for output in outputs:
            if getattr(output, "is_xla", False):  # an edge of the graph has no device
                break
        else:
            return original(outputs, *args, **kwargs)
        before = threads_on()
        try:
            set_threads(False)
            return original(outputs, *args, **kwargs)
        finally:
            set_threads(before)

    torch_modules.wrap_backward(run_backward)
