"""Base class of the syncfree optimizers: a step that is skipped by a tensor on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_xla.amp.conditional_step import SkipCondition


class SyncFree(torch.optim.Optimizer):
    """An optimizer with all of its state on the device.

    ``step(closure=None, found_inf=None)``: if ``found_inf``, a one-element tensor, is nonzero, neither parameters nor
    state change. A GradScaler (torch's or torch_xla's) delegates this check and the unscaling of gradients to step: it
    sets the attributes found_inf and grad_scale for the call.
    """

    _step_supports_amp_scaling = True  # read by torch.amp.GradScaler; an entry of compat

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, found_inf: Tensor | None = None) -> Any:
        """Run one step, which ``found_inf`` skips on the device.

        Args:
          closure: A function that computes the loss and its gradients. It is called first, with gradients enabled.
          found_inf: A tensor of one number; the step changes nothing if it is not 0. The default is the attribute
            ``found_inf``, which ``torch.amp.GradScaler`` sets.

        Returns:
          The result of ``closure``; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if found_inf is None:
            found_inf = getattr(self, "found_inf", None)
        skipped = None if found_inf is None else SkipCondition([found_inf])
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            self._unscale(params)
            self._update(group, params, skipped)
        return loss

    def _unscale(self, params: list[Tensor]) -> None:
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is None or not params:
            return
        inverse = scale.double().reciprocal().float()
        for p in params:
            assert p.grad is not None
            p.grad.mul_(inverse.to(p.device))

    def _update(self, group: dict[str, Any], params: list[Tensor], skipped: SkipCondition | None) -> None:
        """Update the parameters that have a gradient, and their state, unless ``skipped``."""
        raise NotImplementedError
