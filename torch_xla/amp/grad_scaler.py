"""Loss scaling for float16 that never waits for the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla.amp import conditional_step


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("xla")`` that decides on the device whether a step counts.

    With the optimizers of torch_xla.amp.syncfree nothing is read back. Any other optimizer steps, and where a gradient
    was not finite its parameters and state are set back, by a select on the device; if it keeps part of its state in
    Python or on the CPU (torch.optim.Adam without ``capturable=True``), found_inf is read instead, at every step, with
    a warning. `step` returns what the optimizer's step returns, also for a step that was taken back.

    Args:
      init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.amp.GradScaler.
      use_zero_grad: accepted for compatibility; no choice is needed here.

    Raises TypeError for a device in place of ``init_scale``.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        if isinstance(init_scale, (str, torch.device)):
            raise TypeError(
                f"torch_xla.amp.GradScaler is for xla and takes no device, but init_scale is {init_scale!r}: "
                "leave it out, or use torch.amp.GradScaler('xla')"
            )
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    # Called by torch.amp.GradScaler.step; an entry of compat.
    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        return conditional_step.step_unless_inf(found, optimizer, lambda: optimizer.step(*args, **kwargs))
