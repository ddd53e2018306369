"""Stager for asynchronous saves with ``torch.distributed.checkpoint`` and xla tensors.

``save`` and ``load`` work unchanged, also on another number of processes. Use a separate folder per checkpoint:
``.metadata`` is written last, so a folder without it is incomplete. ``async_save`` needs a CPU process group for its
background thread, and a stager that supports tensors without a storage::

    group = dist.new_group(backend="gloo")     # once
    future = dcp.async_save(state, checkpoint_id=folder, process_group=group, async_stager=Stager())
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.checkpoint.staging import AsyncStager

from torch_xla._engine.compat import dynamo
from torch_xla.core import transfers


class Stager(AsyncStager):
    """Copies the state to the CPU before ``async_save`` returns: training may then change it. Retains nothing."""

    _synchronize_after_execute = False

    def stage(self, state_dict: Any) -> Any:
        """Return a deep copy of ``state_dict`` with CPU copies in place of its xla tensors, in one transfer.

        Args:
          state_dict: nested dictionaries and lists of tensors and other objects.
        """
        tensors = [value for value in dynamo.tree_leaves(state_dict) if isinstance(value, torch.Tensor)]
        on_xla = [t for t in tensors if t.device.type == "xla"]
        # deepcopy takes objects in its memo as they are. It rejects tensors that are not autograd leaves.
        memo: dict[int, Any] = {id(t): t.detach().clone() for t in tensors if not t.is_leaf}
        memo |= {id(t): values for t, values in zip(on_xla, transfers._maybe_convert_to_cpu(on_xla), strict=True)}
        return copy.deepcopy(state_dict, memo)

    def synchronize_staging(self) -> None:
        """Do nothing: staging is complete when ``stage`` returns."""

    def close(self) -> None:
        """Do nothing: the stager holds no resources."""
