"""Initialize optimizer state before loading a checkpoint."""

from __future__ import annotations

import torch

import torch_xla


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Create the state that the optimizer's first step would create: zeros with the shardings of the parameters.

    A checkpoint is loaded into existing tensors, and an optimizer has no state before its first step. Parameters and
    gradients do not change, and the step count starts at 0.

    Args:
      optimizer: an optimizer before its first step.

    Returns:
      The optimizer.

    Raises:
      RuntimeError: the optimizer already has state.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.distributed_checkpoint import prime_optimizer
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> optimizer = prime_optimizer(torch.optim.AdamW(model.parameters()))
      >>> sorted(optimizer.state_dict()["state"][0])
      ['exp_avg', 'exp_avg_sq', 'step']
    """
    if optimizer.state:
        raise RuntimeError(
            "prime_optimizer: the optimizer already has state; call prime_optimizer before its first step"
        )
    params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    grads, rates = [p.grad for p in params], [group.get("lr") for group in optimizer.param_groups]
    with torch.no_grad():
        kept = [p.detach().clone() for p in params]
    try:
        for p in params:
            p.grad = torch.zeros_like(p)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, torch.Tensor) else 0.0
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        with torch.no_grad():
            for p, grad, value in zip(params, grads, kept, strict=True):
                p.grad = grad
                p.copy_(value)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].zero_()
        elif "step" in state:
            state["step"] = 0
    if any(p.device.type == "xla" for p in params):
        torch_xla.sync()
    return optimizer
