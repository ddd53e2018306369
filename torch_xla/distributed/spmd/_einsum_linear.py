"""nn.Linear by einsum over all dimensions: torch's flattens them to two and merges differently sharded ones."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


class XLAPatchedLinear(torch.autograd.Function):
    """``linear(input, weight, bias)`` by einsum, also in backward: no dimensions of the input are merged."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="xla")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Compute input[..., n], weight[m, n], bias[m] -> [..., m]."""
        ctx.save_for_backward(input, weight, bias)
        out = torch.einsum("...n,mn->...m", input, weight)
        return out if bias is None else out + bias.to(out.dtype)

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of the arguments that require one."""
        input, weight, bias = ctx.saved_tensors
        (grad,) = grads
        needs_input, needs_weight, needs_bias = (*ctx.needs_input_grad, False)[:3]
        return (
            torch.einsum("...m,mn->...n", grad, weight) if needs_input else None,
            torch.einsum("...m,...n->mn", grad, input) if needs_weight else None,
            torch.einsum("...m->m", grad) if bias is not None and needs_bias else None,
        )[: len(ctx.needs_input_grad)]


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """Return ``m(input)``, computed by XLAPatchedLinear."""
    result: torch.Tensor = XLAPatchedLinear.apply(input, m.weight, m.bias)  # type: ignore[no-untyped-call]
    return result


class EinsumLinear(nn.Linear):
    """nn.Linear, computed by XLAPatchedLinear."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """See nn.Linear."""
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: M) -> M:
    """Make every nn.Linear in the module, or itself, an EinsumLinear, in place; return it. Subclasses are unchanged.

    Args:
      module: the module; changed in place.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = EinsumLinear
    return module


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Put an optimization barrier behind the gradients of the module's inputs in each backward pass.

    XLA then does not fuse or reorder their computation with later operations. Applies to positional tensor arguments.

    Args:
      m: the module.
    """

    def before(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        places = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not places or not torch.is_grad_enabled():
            return inputs
        guarded = _BackwardBarrier.apply(*(inputs[i] for i in places))  # type: ignore[no-untyped-call]
        known = dict(zip(places, guarded, strict=True))
        return tuple(known.get(i, x) for i, x in enumerate(inputs))

    m.register_forward_pre_hook(before)


class _BackwardBarrier(torch.autograd.Function):
    """Identity whose gradients are all computed before any of them is read."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if grads[0].device.type != "xla":
            return grads
        return tuple(torch.ops.torch_xla.optimization_barrier(list(grads)))
