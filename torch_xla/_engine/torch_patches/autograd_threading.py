"""Run backward passes of xla tensors on the calling thread instead of autograd's device threads.

Autograd runs the backward pass of each device on a separate thread. Recording gains nothing from that, and waking the
thread costs as much as recording forty ops. torch's switch (``set_multithreading_enabled``) applies to the calling
thread and all devices, so it is set for the duration of a pass, and only if an output is on xla or the backend has
started (a loss on the CPU may depend on xla tensors). All passes that Python starts go through one function of torch
(compat/torch_modules.py).

Autograd counts the devices at its first pass and starts a thread for each. Until the backend starts xla reports none,
so that a process that only uses the CPU starts none either, and may fork after a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine.base import dynamo_hooks
from torch_xla._engine.compat import torch_modules
from torch_xla._engine.device import devices


def patch_backward() -> None:
    """Wrap the function that torch.autograd.backward and grad call, once."""
    switch = torch_modules.autograd_multithreading()
    if switch is None:
        return
    threads_on, set_threads = switch

    # Optimized, as every pass runs this: with any(...) and a `with` block it took a tenth of a small pass.
    def run_backward(original: Callable[..., Any], outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for output in outputs:
            if getattr(output, "is_xla", False):  # a GradientEdge has no device
                break
        else:
            if not devices.backend_started():
                return original(outputs, *args, **kwargs)
        before = threads_on()
        try:
            set_threads(False)
            return original(outputs, *args, **kwargs)
        finally:
            set_threads(before)

    torch_modules.wrap_backward(dynamo_hooks.dynamo_disable(run_backward))
