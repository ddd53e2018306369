"""``torch.distributed.checkpoint`` with xla tensors: what it lacks to save in the background.

``save`` and ``load`` work as they are, also on another number of processes. Give each checkpoint a folder of its own:
``.metadata`` comes last, so a folder without it was never finished. ``async_save`` needs a group of the CPU for its
background thread, and a stager that knows tensors without a storage::

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
    """Copies the state to the CPU before ``async_save`` returns: training may then change it. Keeps nothing."""

    _synchronize_after_execute = False

    def stage(self, state_dict: Any) -> Any:
        """A deep copy of ``state_dict``, with CPU copies in the place of its xla tensors, in one transfer."""
        tensors = [value for value in dynamo.tree_leaves(state_dict) if isinstance(value, torch.Tensor)]
        on_xla = [t for t in tensors if t.device.type == "xla"]
        # What deepcopy finds in its memo it takes. It refuses tensors that are not leaves of autograd.
        memo: dict[int, Any] = {id(t): t.detach().clone() for t in tensors if not t.is_leaf}
        memo |= {id(t): values for t, values in zip(on_xla, transfers._maybe_convert_to_cpu(on_xla), strict=True)}
        return copy.deepcopy(state_dict, memo)

    def synchronize_staging(self) -> None:
        """Nothing is under way when ``stage`` has returned."""

    def close(self) -> None:
        """Nothing is held."""
