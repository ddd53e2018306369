"""``torch.distributed.checkpoint`` with xla tensors: what it lacks to save in the background.

``save`` and ``load`` work as they are, also on another number of processes. Give each checkpoint a folder of its own:
``.metadata`` comes last, so a folder without it was never finished. ``async_save`` needs a group of the CPU for its
background thread, and a stager that knows tensors without a storage::

    group = dist.new_group(backend="gloo")     # once
    future = dcp.async_save(state, checkpoint_id=folder, process_group=group, async_stager=Stager())
"""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.staging import AsyncStager

from torch_xla.core import transfers


class Stager(AsyncStager):
    """Copies xla tensors to the CPU before ``async_save`` returns: training may then change them. Keeps nothing."""

    _synchronize_after_execute = False

    def stage(self, state_dict: Any) -> Any:
        """``state_dict`` with CPU copies in the place of its xla tensors, in one transfer."""
        return transfers._maybe_convert_to_cpu(state_dict)

    def synchronize_staging(self) -> None:
        """Nothing is under way when ``stage`` has returned."""

    def close(self) -> None:
        """Nothing is held."""
