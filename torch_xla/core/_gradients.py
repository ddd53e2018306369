"""Synchronize replicas of a model: average gradients, broadcast parameters from the master."""

from __future__ import annotations

import itertools

import torch

from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import collectives
from torch_xla.core._buckets import buckets
from torch_xla.core._collectives import REDUCE_SUM, Groups, all_reduce, collective_broadcast

#: The attribute by which libraries recognize a shard of a parameter that FSDP has made.
SHARE = "_is_sharded"


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients that an optimizer will use and the replicas reduce, in order.

    The gradients of FSDP's shards are left out: FSDP has reduced them, and other replicas hold other elements.
    accelerate reduces the gradients that it finds here, with FSDP as without.
    """
    parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [p.grad for p in parameters if p.grad is not None and not getattr(p, SHARE, False)]


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor], scale: float, groups: Groups, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sum gradients over the group, times ``scale``, in place; ``bucket_cap_mb`` MB per collective, 0: all in one.

    Args:
      gradients: xla tensors of any shape and dtype, updated in place.
      scale: factor of the sum.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.
      bucket_cap_mb: size of a bucket in MiB; 0 puts all gradients into one collective.
    """
    for bucket in buckets(gradients, bucket_cap_mb):
        all_reduce(REDUCE_SUM, bucket, scale, groups, pin_layout)


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Average the gradients of an optimizer's parameters over the replica group, in place; no-op with one replica.

    Args:
      optimizer: its parameters' ``grad`` tensors are updated; gradients of FSDP shards are left out.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.
    """
    if replicas.world_size() == 1:
        return
    scale = 1.0 / collectives.group_size(groups)
    cap = settings.ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB
    all_reduce_bucketized_gradients(_fetch_gradients(optimizer), scale, groups, pin_layout, cap)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Copy the parameters and buffers of replica 0 to all replicas, in place; starts the transfer immediately.

    Args:
      model: a module on xla. All replicas must call this function.
    """
    from torch_xla import torch_xla as _top

    with torch.no_grad():
        tensors = [tensor.data for tensor in itertools.chain(model.parameters(), model.buffers())]
    collective_broadcast(tensors)
    _top.sync()
