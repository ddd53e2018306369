"""Keeping replicas of a model equal: gradients averaged, parameters sent from the master."""

from __future__ import annotations

import itertools

import torch

from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import collectives
from torch_xla.core._buckets import buckets
from torch_xla.core._collectives import REDUCE_SUM, Groups, all_reduce, collective_broadcast

#: The attribute by which libraries know a share that FSDP has made of a parameter.
SHARE = "_is_sharded"


def _fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that an optimizer will use and replicas reduce, in order.

    Without those of FSDP's shares, which it has reduced: another replica's are of other elements. accelerate reduces
    what it finds here, with FSDP as without.
    """
    parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [p.grad for p in parameters if p.grad is not None and not getattr(p, SHARE, False)]


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor], scale: float, groups: Groups, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sums gradients over the group, times ``scale``, in place; ``bucket_cap_mb`` MB in one collective, 0: all."""
    for bucket in buckets(gradients, bucket_cap_mb):
        all_reduce(REDUCE_SUM, bucket, scale, groups, pin_layout)


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Averages the gradients of an optimizer's parameters over the group, in place; nothing with one replica."""
    if replicas.world_size() == 1:
        return
    scale = 1.0 / collectives.group_size(groups)
    cap = settings.ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB
    all_reduce_bucketized_gradients(_fetch_gradients(optimizer), scale, groups, pin_layout, cap)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Sets a model's parameters and buffers, in place, to what replica 0 has; sends them off at once."""
    from torch_xla import torch_xla as _top

    with torch.no_grad():
        tensors = [tensor.data for tensor in itertools.chain(model.parameters(), model.buffers())]
    collective_broadcast(tensors)
    _top.sync()
