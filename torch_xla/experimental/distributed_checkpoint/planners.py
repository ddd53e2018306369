"""Planners of torch.distributed.checkpoint for state dicts with sharded tensors."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, WriteItem

from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, load_local_shards_, local_parts
from torch_xla.experimental.distributed_checkpoint._shards import (
    Pickled,
    TensorShards,
    is_split,
    map_tensors,
    shards_to_read,
    shards_to_write,
)


class SPMDSavePlanner(DefaultSavePlanner):
    """Write the shards of this process's devices; write a shard that several devices hold once.

    dcp.save(state_dict, checkpoint_id=path, planner=SPMDSavePlanner())
    """

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """See DefaultSavePlanner.

        Args:
          state_dict, storage_meta, is_coordinator: see DefaultSavePlanner.
        """
        prepared = map_tensors(state_dict, lambda t: shards_to_write(t, now=False) if is_split(t) else t)
        super().set_up_planner(prepared, storage_meta, is_coordinator)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """See DefaultSavePlanner.

        Args:
          index: see DefaultSavePlanner.
        """
        found = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, TensorShards) else super().lookup_object(index)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """See DefaultSavePlanner.

        Args:
          write_item, object: see DefaultSavePlanner.
        """
        return object.data if isinstance(object, Pickled) else super().transform_object(write_item, object)


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Read the shards of this process's devices, in place, whatever mesh the checkpoint was saved from.

        dcp.load(state_dict, checkpoint_id=path, planner=SPMDLoadPlanner())

    No device and no host ever holds the full value of a sharded tensor. Tensors retain their shardings and dtypes.
    """

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """See DefaultLoadPlanner.

        Args:
          state_dict, metadata, is_coordinator: see DefaultLoadPlanner.
        """
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self._targets = {
            name: t for name, t in self.state_dict.items() if isinstance(t, torch.Tensor) and t.device.type == "xla"
        }
        for name, t in self._targets.items():
            self.state_dict[name] = shards_to_read(t) if is_split(t) else torch.empty(t.shape, dtype=t.dtype)

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """See DefaultLoadPlanner.

        Args:
          central_plan: see DefaultLoadPlanner.
        """
        plan = super().finish_plan(central_plan)
        self._missing = collections.Counter(item.dest_index.fqn for item in plan.items)
        return plan

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """See DefaultLoadPlanner.

        Args:
          index: see DefaultLoadPlanner.
        """
        found: Any = self.state_dict[index.fqn]
        return found.__get_tensor_shard__(index) if isinstance(found, TensorShards) else super().lookup_tensor(index)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """See DefaultLoadPlanner. The last shard of a tensor triggers the transfer of all shards to the devices.

        Args:
          read_item, tensor: see DefaultLoadPlanner.
        """
        name = read_item.dest_index.fqn
        self._missing[name] -= 1
        if self._missing[name] > 0 or name not in self._targets:
            return
        target, read = self._targets.pop(name), self.state_dict[name]
        if isinstance(read, TensorShards):
            load_parts_(target, read)
        else:
            with torch.no_grad():
                target.copy_(read)
        self.state_dict[name] = None


def load_parts_(t: torch.Tensor, parts: TensorShards) -> None:
    """Write shards into a sharded tensor, in place: each device of this process receives its own shard."""
    shards = [
        XLAShard(parts.part(part.offsets) if part.filled else torch.empty(part.sizes, dtype=t.dtype), ..., "", 0)
        for part in local_parts(t, values=False)
    ]
    load_local_shards_(t, shards)
