"""Tensors that wait in the host's memory between the places of a step that use them."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["place_to_device", "place_to_host"]


class _Placed(torch.autograd.Function):
    """A tensor in the memory of the host or of the device; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, host: bool) -> torch.Tensor:
        ctx.host = host
        placed: torch.Tensor = torch.ops.torch_xla.place(t, host)
        return placed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.ops.torch_xla.place(grads[0], not ctx.host), None


def _place(name: str, t: torch.Tensor, host: bool) -> torch.Tensor:
    if t.device.type != "xla":
        raise ValueError(f"{name}: expected an xla tensor, got {t.dtype}{list(t.shape)} on {t.device}")
    placed: torch.Tensor = _Placed.apply(t, host)  # type: ignore[no-untyped-call]
    return placed


def place_to_host(t: torch.Tensor) -> torch.Tensor:
    """The tensor in the host's memory, within the step: ``place_to_device`` brings it back for what uses it.

    On the CPU both are one memory. Differentiable. A value that is still there when the step ends lies on the device
    again. Raises ValueError for a tensor that is on no xla device.
    """
    return _place("place_to_host", t, True)


def place_to_device(t: torch.Tensor) -> torch.Tensor:
    """The tensor in the device's memory again. As place_to_host."""
    return _place("place_to_device", t, False)
