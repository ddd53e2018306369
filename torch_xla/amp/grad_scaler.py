"""Loss scaling for float16 without synchronization with the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla.amp import conditional_step


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("xla")`` that decides on the device whether to skip a step.

    With the optimizers of torch_xla.amp.syncfree no value is read back. Any other optimizer steps, and a select on the
    device restores its parameters and state if a gradient was not finite. If such an optimizer has state in Python or
    on the CPU (torch.optim.Adam without ``capturable=True``), ``found_inf`` is read at every step instead, with a
    warning. `step` returns the result of the optimizer's step, also for a step that was undone.

    Args:
      init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.amp.GradScaler.
      use_zero_grad: accepted for compatibility; has no effect.

    Raises:
      TypeError: a device is passed as ``init_scale``.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.amp import GradScaler, autocast, syncfree
      >>> model = torch.nn.Linear(4, 1).to("xla")
      >>> optimizer = syncfree.SGD(model.parameters(), lr=0.1)
      >>> scaler = GradScaler(init_scale=1024.0)
      >>> for _ in range(2):
      ...     optimizer.zero_grad()
      ...     with autocast("xla", dtype=torch.float16):
      ...         loss = model(torch.ones(8, 4, device="xla")).square().mean()
      ...     scaler.scale(loss).backward()
      ...     scaler.step(optimizer)
      ...     scaler.update()
      ...     torch_xla.sync()
      >>> scaler.get_scale()
      1024.0
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
                f"torch_xla.amp.GradScaler: expected a number as init_scale, got {init_scale!r}; this GradScaler takes "
                "no device: remove the argument, or use torch.amp.GradScaler('xla')"
            )
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    # Called by torch.amp.GradScaler.step; an entry of compat.
    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        return conditional_step.step_unless_inf(found, optimizer, lambda: optimizer.step(*args, **kwargs))
