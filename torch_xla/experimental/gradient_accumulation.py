"""Gradients of several batches, added up in one loop of the program: the memory of one batch, one compilation of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_xla._engine.capture import scan
from torch_xla._engine.capture.joint_graph import save_all

__all__ = ["gradient_accumulation"]


def gradient_accumulation(
    train_step: Callable[..., Any], iterable_tensors: Sequence[Tensor], model: nn.Module, *carried_tensors: Tensor
) -> Any:
    """Runs a step for each element of the tensors' first dimension, and adds the gradients to ``.grad``.

    Gradient and loss are those of the mean of the steps' losses.

    Args:
      train_step: ``train_step(*elements, *carried)`` gives a loss, or ``(loss, *carried)``. It calls the model, and no
        ``backward``. It is run once, on tensors without values; see scan for what it may do.
      iterable_tensors: xla tensors of one size in their first dimension.
      model: its parameters that require a gradient get it.
      carried_tensors: what a step hands on to the next: of the same shapes and dtypes, and without a gradient.

    Returns:
      The loss; with carried tensors ``(loss, *carried)``.

    Raises:
      ValueError: sizes differ, the loss is no single number, or what is carried changes its form. What else scan
        raises.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = int(iterable_tensors[0].shape[0]) if iterable_tensors and iterable_tensors[0].dim() else 0
    if not steps:
        raise ValueError("gradient_accumulation: iterable_tensors needs a tensor whose first dimension is not 0")

    def step(state: Any, elements: Any) -> tuple[Any, None]:
        total, gradients, carried = state
        with torch.enable_grad():
            result = train_step(*elements, *carried)
            loss, *rest = result if isinstance(result, (tuple, list)) else (result,)
            if loss.numel() != 1:
                raise ValueError(f"gradient_accumulation: the loss has shape {list(loss.shape)}, not one element")
            mean = loss.reshape(()) / steps
            found = torch.autograd.grad(mean, parameters, allow_unused=True)
        summed = [g if new is None else g + new for g, new in zip(gradients, found, strict=True)]
        return (total + mean.detach().to(total.dtype), summed, [t.detach() for t in rest]), None

    with torch.no_grad():
        start = torch.zeros((), device=iterable_tensors[0].device), [torch.zeros_like(p) for p in parameters]
        (total, gradients, carried), _ = scan.scan(
            step, (*start, list(carried_tensors)), list(iterable_tensors), save_all, what="gradient_accumulation"
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    return (total, *carried) if carried_tensors else total
