"""Utilities of FSDP: activation checkpointing of modules, linear layers whose backward reads the weight itself.

Also bucketed collectives as FSDP calls them, and stand-ins without communication, to measure its cost.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from torch_xla._engine.parallel import collectives
from torch_xla.core import xla_model as xm
from torch_xla.distributed.spmd import XLAPatchedLinear
from torch_xla.utils.checkpoint import checkpoint

__all__ = [
    "BucketizedReduceScatter", "DummyReduceScatter", "XLAPatchedLinear", "apply_xla_patch_to_nn_linear",
    "checkpoint_module", "dummy_all_gather", "dummy_all_reduce",
]  # fmt: skip

Groups = Sequence[Sequence[int]] | None

M = TypeVar("M", bound=nn.Module)

#: The attribute of a module whose forward is recomputed in the backward pass: its original forward.
PLAIN_FORWARD = "_torch_xla_plain_forward"


def checkpoint_module(module: M) -> M:
    """Wrap the module's forward in activation checkpointing: see [torch_xla.utils.checkpoint.checkpoint][].

    Its parameters get gradients even if no input requires one. With FSDP: ``FSDP(checkpoint_module(layer))``.

    Args:
      module: the module; its ``forward`` is replaced.

    Returns:
      The module itself.

    Examples:
      >>> import torch
      >>> from torch_xla.distributed.fsdp import checkpoint_module
      >>> layer = checkpoint_module(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("xla"))
      >>> layer(torch.ones(2, 4, device="xla")).sum().backward()  # computes GELU's input again
      >>> layer[0].weight.grad.shape
      torch.Size([4, 4])
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
    """Set ``patched_function(layer, input)`` as the forward of every nn.Linear in the module, or of itself; return it.

    Subclasses, and layers whose forward is already replaced, are unchanged.

    Args:
      module: the module; changed in place.
      patched_function: called with a layer and its input.
    """
    for layer in module.modules():
        if type(layer) is nn.Linear and "forward" not in layer.__dict__:
            object.__setattr__(layer, "forward", types.MethodType(patched_function, layer))
    return module


def dummy_all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """Return a tensor of all_gather's shape with this replica's values only, without communication."""
    return torch.cat([value] * collectives.group_size(groups), dim)


def dummy_all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None) -> Any:
    """Return this replica's values times ``scale`` as all_reduce does, without communication."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    with torch.no_grad():
        for tensor in inputs:
            tensor.mul_(scale)
    return inputs


class DummyReduceScatter:
    """BucketizedReduceScatter without communication: a slice of this replica's values, of the shard's shape."""

    def __init__(self, shard_count: int) -> None:
        self.shard_count = shard_count
        self.scale = 1.0

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
        """Call back with the slice immediately."""
        part = input[: input.shape[0] // self.shard_count]
        callback(part if self.scale == 1.0 else part * self.scale)

    def flush(self) -> None:
        """Do nothing: no tensor is pending."""


class BucketizedReduceScatter:
    """Reduce-scatter tensors along dimension 0, in buckets.

    Args:
      bucket_size_mb: maximum size of a bucket in MB; 0: send each tensor immediately.
      shard_count: number of replicas in a group.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: has no effect.

    The attribute ``scale`` is a factor of the sums.
    """

    def __init__(self, bucket_size_mb: int, shard_count: int, groups: Groups = None, pin_layout: bool = True) -> None:
        self.shard_count, self.groups, self.scale = shard_count, groups, 1.0
        self._cap = bucket_size_mb << 20
        self._waiting: list[tuple[torch.Tensor, Callable[[torch.Tensor], object]]] = []

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], object]) -> None:
        """Add a tensor to the bucket; ``callback`` receives this replica's shard of the sum when the bucket is sent."""
        if self._waiting and sum(t.nbytes for t, _ in self._waiting) + input.nbytes > self._cap:
            self.flush()
        self._waiting.append((input, callback))
        if input.nbytes >= self._cap:
            self.flush()

    def flush(self) -> None:
        """Send the pending tensors and call back in order."""
        waiting, self._waiting = self._waiting, []
        tensors = [tensor for tensor, _ in waiting]
        parts = xm.reduce_scatter("sum", tensors, self.scale, 0, self.shard_count, self.groups)
        for (_, callback), part in zip(waiting, parts, strict=True):
            callback(part)
