"""Collectives of a CheckpointManager over a gloo group of all processes; None stands for a job of one process."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist

from torch_xla._engine.job import replicas

T = TypeVar("T")
Group = dist.ProcessGroup | None


def create_group() -> Group:
    """Create a gloo group over all processes; None if there is one process.

    Raises:
      RuntimeError: the job has several processes and no process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        if replicas.process_count() > 1:
            raise RuntimeError(
                f"CheckpointManager: the {replicas.process_count()} processes of the job need a process group; call "
                "torch.distributed.init_process_group('gloo', init_method='xla://') first"
            )
        return None
    if dist.get_world_size() == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


def rank(group: Group) -> int:
    """Return the rank of this process in the group."""
    return 0 if group is None else dist.get_rank(group)


def size(group: Group) -> int:
    """Return the number of processes."""
    return 1 if group is None else dist.get_world_size(group)


def any_process(group: Group, mine: bool) -> bool:
    """Return whether the flag is True on any process."""
    if group is None:
        return mine
    flag = torch.tensor([int(mine)])
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag.item())


def all_gather(group: Group, value: T) -> list[T]:
    """Return the picklable value of each process, by rank."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def broadcast(group: Group, value: T, source: int = 0) -> T:
    """Return the picklable value of the process ``source``."""
    if group is None:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, group=group, group_src=source)
    found: T = values[0]
    return found
