"""Activation checkpointing: what a part of a model computes is forgotten after the forward pass, and computed again.

XLA sees both passes as one program, and would find that they compute the same values, and keep them. So the second
computation starts from its inputs behind a barrier. torch.utils.checkpoint does the same on xla.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import checkpoint as torch_checkpoint

from torch_xla._engine.torch_patches.checkpoint_barrier import with_optimization_barrier
from torch_xla.core import xla_model as xm

__all__ = ["CheckpointFunction", "CheckpointStatus", "checkpoint", "get_device_states", "set_device_states"]


def get_device_states(*args: Any) -> tuple[list[torch.device], list[int]]:
    """The xla devices among the arguments' tensors, and the state of the random numbers of each."""
    devices = sorted({x.device for x in args if isinstance(x, torch.Tensor) and x.device.type == "xla"}, key=str)
    return devices, [xm.get_rng_state(device) for device in devices]


def set_device_states(devices: Sequence[torch.device], states: Sequence[int]) -> None:
    """Sets the states that get_device_states has given."""
    for device, state in zip(devices, states, strict=True):
        xm.set_rng_state(state, device)


class CheckpointStatus:
    """Whether this thread computes a checkpointed function again."""

    IN_CHECKPOINT = False


@contextmanager
def _recompute_with_rng(devices: Sequence[torch.device], states: Sequence[int] | None) -> Iterator[None]:
    """Computes with the random numbers of before; afterwards they go on where they were."""
    now = [xm.get_rng_state(device) for device in devices]
    before, CheckpointStatus.IN_CHECKPOINT = CheckpointStatus.IN_CHECKPOINT, True
    if states is not None:
        set_device_states(devices, states)
    try:
        yield
    finally:
        CheckpointStatus.IN_CHECKPOINT = before
        if states is not None:
            set_device_states(devices, now)


class CheckpointFunction(torch.autograd.Function):
    """``CheckpointFunction.apply(function, preserve_rng_state, *args)``: see checkpoint."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        """What the function gives."""
        ctx.run_function, ctx.args = run_function, [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.places = [place for place, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ctx.devices, states = get_device_states(*args)
        ctx.states = states if preserve_rng_state else None
        ctx.autocast = [
            {"device_type": kind, "enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}
            for kind in ("xla", "cpu")
        ]
        ctx.save_for_backward(*(args[place] for place in ctx.places))
        with torch.no_grad():
            return run_function(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The gradients of the arguments, by computing the function again; parameters get theirs, too."""
        given = [g for g in grads if isinstance(g, torch.Tensor)]
        inputs = with_optimization_barrier(
            [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors], given
        )
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, inputs, strict=True):
            args[place] = tensor
        xla, cpu = ctx.autocast
        with (
            torch.enable_grad(),
            _recompute_with_rng(ctx.devices, ctx.states),
            torch.autocast(**xla),
            torch.autocast(**cpu),
        ):
            outputs = ctx.run_function(*args)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        wanted = [
            (out, grad)
            for out, grad in zip(outputs, grads, strict=True)
            if isinstance(out, torch.Tensor) and out.requires_grad and grad is not None
        ]
        if not wanted:
            raise RuntimeError("checkpoint: none of the outputs has requires_grad=True, nothing to compute again")
        torch.autograd.backward([out for out, _ in wanted], [grad for _, grad in wanted])
        return None, None, *(a.grad if isinstance(a, torch.Tensor) else None for a in args)


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """``function(*args)``, of which nothing is kept for the backward pass but its arguments.

    The backward pass computes it again, with the same random numbers (``preserve_rng_state=False``: others).

    Args:
      function: a module, say. Gradients reach its arguments and its parameters.
      args: what it is called with; with ``use_reentrant`` one of them must need a gradient.
      use_reentrant: False: torch.utils.checkpoint's other way, which takes keyword arguments and nested tensors.

    Raises ValueError for keyword arguments with ``use_reentrant``.
    """
    if not use_reentrant:
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError(f"checkpoint: unexpected keyword arguments {', '.join(kwargs)}; use use_reentrant=False")
    return CheckpointFunction.apply(function, preserve, *args)  # type: ignore[no-untyped-call]
