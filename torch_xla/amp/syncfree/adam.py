"""Adam with its step count on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from torch_xla.amp.conditional_step import SkipCondition, skip_scope
from torch_xla.amp.syncfree.optimizer import SyncFree


class AdamBase(SyncFree):
    """The step of Adam and AdamW; a mixin that precedes torch's class in the bases.

    The state is torch's with ``capturable=True``: step, exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
    """

    WEIGHT_DECAY: float  # default of the constructor

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | None = None,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        decay = self.WEIGHT_DECAY if weight_decay is None else weight_decay
        options: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": decay, "amsgrad": amsgrad}
        options |= {"maximize": maximize, "capturable": True}
        super().__init__(params, **options)  # torch's Adam or AdamW, next in the method resolution order

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this optimizer or of torch's equivalent; move the step count to the device."""
        groups = [{**group, "capturable": True} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})

    def _start(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])):
                state[name] = torch.zeros_like(p)
        return state

    def _update(self, group: dict[str, Any], params: list[Tensor], skipped: SkipCondition | None) -> None:
        states = [self._start(p, group) for p in params]
        column = {name: [state[name] for state in states] for name in (states[0] if states else ())}
        with skip_scope(skipped, [*params, *(tensor for tensors in column.values() for tensor in tensors)]):
            adam(
                params,
                [p.grad for p in params if p.grad is not None],
                column.get("exp_avg", []),
                column.get("exp_avg_sq", []),
                column.get("max_exp_avg_sq", []),
                column.get("step", []),
                foreach=False,
                capturable=True,
                has_complex=any(map(torch.is_complex, params)),
                decoupled_weight_decay=group["decoupled_weight_decay"],
                amsgrad=group["amsgrad"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
            )


class Adam(AdamBase, torch.optim.Adam):
    """torch.optim.Adam whose step takes ``found_inf``. Shapes, options and state are torch's.

    Examples:
      >>> import torch
      >>> from torch_xla.amp import syncfree
      >>> weight = torch.nn.Parameter(torch.ones(2, device="xla"))
      >>> optimizer = syncfree.Adam([weight], lr=0.1)
      >>> weight.sum().backward()
      >>> optimizer.step(found_inf=torch.ones(1, device="xla"))  # skipped on the device
      >>> weight.tolist()
      [1.0, 1.0]
    """

    WEIGHT_DECAY = 0.0
