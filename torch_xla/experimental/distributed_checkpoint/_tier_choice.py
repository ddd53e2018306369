"""Choose the tier that a checkpoint is restored from; all processes make the same choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_xla.experimental.distributed_checkpoint import _checksummed_storage, _process_group, _snapshots
from torch_xla.experimental.distributed_checkpoint._tier_reader import TierReader
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner

_METADATA = ".metadata"


@dataclass(frozen=True)
class Source:
    """A step, and its snapshot; without a snapshot, its remote checkpoint. ``reason``: why not a local snapshot."""

    step: int
    snapshot: _snapshots.Snapshot | None
    reason: str = ""


def complete_steps(group: _process_group.Group, held: Sequence[_snapshots.HeldSnapshot]) -> set[int]:
    """Return the steps with a snapshot of which the processes together hold every file. Collective."""
    return {one.manifest.step for one in _snapshots.gather(group, held) if not one.missing}


def choose_source(
    group: _process_group.Group, held: Sequence[_snapshots.HeldSnapshot], remote: Sequence[int], step: int | None
) -> Source | None:
    """Return the source of a step, or of the newest one; None if it is in no tier. Collective.

    A snapshot is preferred to a remote checkpoint of the same step. Its checksums are verified.

    Args:
      group: the group of the calling thread.
      held: the snapshots of this process.
      remote: the steps of the remote checkpoints, equal on all processes.
      step: a step; None: the newest.
    """
    rejected = []
    newest_remote = max((found for found in remote if step in (None, found)), default=-1)
    snapshots = [one for one in _snapshots.gather(group, held) if step in (None, one.manifest.step)]
    for candidate in snapshots:
        if candidate.manifest.step < newest_remote:
            rejected.append(f"the newest local snapshot is that of step {candidate.manifest.step}")
            break
        snapshot = candidate if candidate.missing else _snapshots.verify(group, candidate, held)
        if not snapshot.missing:
            return Source(snapshot.manifest.step, snapshot, "; ".join(rejected))
        rejected.append(
            f"no process has an intact copy of {', '.join(snapshot.missing)} of the local snapshot of step "
            f"{snapshot.manifest.step}"
        )
    if newest_remote < 0:
        return None
    return Source(newest_remote, None, "; ".join(rejected) or "there is no local snapshot")


def load_snapshot(
    group: _process_group.Group, snapshot: _snapshots.Snapshot, held: Sequence[_snapshots.HeldSnapshot], state: Any
) -> TierReader:
    """Load a complete snapshot in place. Collective.

    Returns:
      The reader, which has the number of files by tier.
    """
    paths = next((one.paths for one in held if one.manifest.id == snapshot.manifest.id), {})
    holder = snapshot.holders[_METADATA][0]
    mine = Path(paths[_METADATA]).read_bytes() if _process_group.rank(group) == holder else b""
    reader = TierReader(snapshot, paths, _process_group.broadcast(group, mine, holder), group)
    _checksummed_storage.load(state, reader, SPMDLoadPlanner(), group)
    return reader
