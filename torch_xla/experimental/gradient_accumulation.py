"""Accumulate the gradients of several batches in one loop of the program, with the memory of one batch."""

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
    """Run a step for each element of the tensors' first dimension, and add the gradients to ``.grad``.

    Gradient and loss are those of the mean of the steps' losses.

    Args:
      train_step: ``train_step(*elements, *carried)`` returns a loss, or ``(loss, *carried)``. It calls the model, but
        not ``backward``. It is traced once, on abstract tensors; the restrictions of
        [scan][torch_xla.experimental.scan.scan] apply.
      iterable_tensors: xla tensors with equal first dimensions.
      model: its parameters that require a gradient receive it.
      carried_tensors: values passed from one step to the next, of constant shapes and dtypes, without a gradient.

    Returns:
      The loss; with carried tensors ``(loss, *carried)``.

    Raises:
      ValueError: first dimensions differ, the loss is not a scalar, or a carried value changes its shape or dtype.
      Other errors of scan.

    Examples:
      Four batches of 8 images:

      >>> import torch
      >>> from torch_xla.experimental.gradient_accumulation import gradient_accumulation
      >>> model = torch.nn.Linear(3, 2).to("xla")
      >>> def train_step(images, labels):
      ...     return torch.nn.functional.cross_entropy(model(images), labels)
      >>> images = torch.ones(4, 8, 3, device="xla")
      >>> labels = torch.zeros(4, 8, dtype=torch.long, device="xla")
      >>> loss = gradient_accumulation(train_step, (images, labels), model)
      >>> list(model.weight.grad.shape)
      [2, 3]
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = int(iterable_tensors[0].shape[0]) if iterable_tensors and iterable_tensors[0].dim() else 0
    if not steps:
        raise ValueError("gradient_accumulation: expected iterable_tensors with a nonempty first dimension")

    def step(state: Any, elements: Any) -> tuple[Any, None]:
        total, gradients, carried = state
        with torch.enable_grad():
            result = train_step(*elements, *carried)
            loss, *rest = result if isinstance(result, (tuple, list)) else (result,)
            if loss.numel() != 1:
                raise ValueError(f"gradient_accumulation: expected a one-element loss, got shape {list(loss.shape)}")
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
