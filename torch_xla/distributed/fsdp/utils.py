"""What goes with FSDP: modules that compute again, and linear layers whose backward reads the weight itself."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from torch_xla.distributed.spmd import XLAPatchedLinear
from torch_xla.utils.checkpoint import checkpoint

__all__ = ["XLAPatchedLinear", "apply_xla_patch_to_nn_linear", "checkpoint_module"]

M = TypeVar("M", bound=nn.Module)

#: The attribute of a module whose forward is computed again in the backward pass: what computes it.
PLAIN_FORWARD = "_torch_xla_plain_forward"


def checkpoint_module(module: M) -> M:
    """The module, whose forward keeps nothing for the backward pass but its inputs: see torch_xla.utils.checkpoint.

    Its parameters get gradients also where no input needs one. To go with FSDP: ``FSDP(checkpoint_module(layer))``.
    """
    plain = module.forward
    object.__setattr__(module, PLAIN_FORWARD, plain)

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(getattr(module, PLAIN_FORWARD), *args, use_reentrant=False, **kwargs)

    object.__setattr__(module, "forward", forward)
    return module


def _xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = XLAPatchedLinear.apply(input, m.weight, m.bias)  # type: ignore[no-untyped-call]
    return result


def apply_xla_patch_to_nn_linear(
    module: M, patched_function: Callable[[nn.Linear, torch.Tensor], torch.Tensor] = _xla_patched_nn_linear_forward
) -> M:
    """Gives every nn.Linear in the module, or itself, ``patched_function(layer, input)`` as its forward; returns it.

    Subclasses, and layers whose forward is someone else's already, are left.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear and "forward" not in layer.__dict__:
            object.__setattr__(layer, "forward", types.MethodType(patched_function, layer))
    return module
