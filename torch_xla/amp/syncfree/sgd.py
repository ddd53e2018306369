"""SGD whose steps, including the first, can be skipped on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torch_xla.amp.conditional_step import SkipCondition, skip_scope
from torch_xla.amp.syncfree.optimizer import SyncFree


class SGD(SyncFree, torch.optim.SGD):
    """torch.optim.SGD whose step takes ``found_inf``. Shapes and options are torch's.

    The state is torch's momentum_buffer, which is zero until a step takes effect; with ``dampening`` also ``started``,
    a bool tensor, since torch does not dampen the first step.

    Args:
      params: parameters or parameter groups.
      lr, momentum, dampening, weight_decay, nesterov, maximize: see torch.optim.SGD.

    Examples:
      >>> import torch
      >>> from torch_xla.amp import syncfree
      >>> weight = torch.nn.Parameter(torch.ones(2, device="xla"))
      >>> optimizer = syncfree.SGD([weight], lr=0.5)
      >>> weight.sum().backward()
      >>> optimizer.step()
      >>> weight.tolist()
      [0.5, 0.5]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)

    def _start(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        if group["momentum"] and state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(p)
            if group["dampening"]:
                state["started"] = torch.zeros((), dtype=torch.bool, device=p.device)
        return state

    def _update(self, group: dict[str, Any], params: list[Tensor], skipped: SkipCondition | None) -> None:
        for p in params:
            state = self._start(p, group)
            written = [tensor for tensor in state.values() if tensor is not None]
            with skip_scope(skipped, [p, *written]):
                p.sub_(self._direction(p, state, group) * group["lr"])

    def _direction(self, p: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        assert p.grad is not None
        grad = -p.grad if group["maximize"] else p.grad
        if group["weight_decay"]:
            grad = grad.add(p, alpha=group["weight_decay"])
        if not group["momentum"]:
            return grad
        buffer = state["momentum_buffer"]
        started = state.get("started")
        damped = buffer * group["momentum"] + grad * (1 - group["dampening"])
        buffer.copy_(damped if started is None else torch.where(started, damped, grad))
        if started is not None:
            started.fill_(True)
        return grad.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
