"""Activation checkpointing: discard activations after the forward pass and recompute them in the backward pass.

XLA sees both passes as one program; it would detect that they compute the same values (CSE) and retain these. So the
recomputation starts from its inputs behind an optimization barrier. torch.utils.checkpoint does the same on xla.
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
    """Return the xla devices of the arguments' tensors, and the random number state of each.

    Args:
      args: tensors and other objects.
    """
    devices = sorted({x.device for x in args if isinstance(x, torch.Tensor) and x.device.type == "xla"}, key=str)
    return devices, [xm.get_rng_state(device) for device in devices]


def set_device_states(devices: Sequence[torch.device], states: Sequence[int]) -> None:
    """Set the states that get_device_states returned.

    Args:
      devices: the devices.
      states: the state of each.
    """
    for device, state in zip(devices, states, strict=True):
        xm.set_rng_state(state, device)


class CheckpointStatus:
    """Whether this thread is recomputing a checkpointed function."""

    IN_CHECKPOINT = False


@contextmanager
def _recompute_with_rng(devices: Sequence[torch.device], states: Sequence[int] | None) -> Iterator[None]:
    """Use the random number states of the forward pass in the block; restore the current states afterwards."""
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
        """Run the function without recording a gradient.

        Args:
          ctx: context of autograd.
          run_function: the function.
          preserve_rng_state: whether the recomputation draws the same random numbers.
          args: the function's arguments.
        """
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
        """Recompute the function and return the gradients of its arguments; also accumulate those of parameters.

        Args:
          ctx: context of autograd.
          grads: gradients of the outputs.
        """
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
            raise RuntimeError("checkpoint: no output has requires_grad=True, so there is nothing to recompute")
        torch.autograd.backward([out for out, _ in wanted], [grad for _, grad in wanted])
        return None, None, *(a.grad if isinstance(a, torch.Tensor) else None for a in args)


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """Run ``function(*args)`` and save only its arguments for backward.

    The backward pass recomputes the function with the same random numbers; with ``preserve_rng_state=False`` it draws
    new ones.

    Args:
      function: a function or module. Gradients reach its arguments and its parameters.
      args: its arguments; with ``use_reentrant`` at least one must require a gradient.
      use_reentrant: False selects the non-reentrant implementation of torch.utils.checkpoint, which supports keyword
        arguments and nested tensors.
      kwargs: keyword arguments, and ``preserve_rng_state``.

    Raises:
      ValueError: keyword arguments with ``use_reentrant``.

    Examples:
      >>> import torch
      >>> from torch_xla.utils.checkpoint import checkpoint
      >>> layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("xla")
      >>> x = torch.ones(2, 4, device="xla", requires_grad=True)
      >>> checkpoint(layer, x).sum().backward()  # runs the layer a second time
      >>> list(x.grad.shape)
      [2, 4]
    """
    if not use_reentrant:
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError(f"checkpoint: unexpected keyword arguments {', '.join(kwargs)}; use use_reentrant=False")
    return CheckpointFunction.apply(function, preserve, *args)  # type: ignore[no-untyped-call]
