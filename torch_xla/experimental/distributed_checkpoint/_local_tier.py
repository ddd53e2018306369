"""Snapshots on the host of each process, with a copy on the host of a peer."""

from __future__ import annotations

import logging
import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.job import replicas
from torch_xla.experimental.distributed_checkpoint import (
    _checksummed_storage,
    _leftovers,
    _peer_copy,
    _process_group,
    _snapshots,
)
from torch_xla.experimental.distributed_checkpoint.planners import SPMDSavePlanner

_METADATA = (".metadata", ".metadata.crc32")
_log = logging.getLogger("torch_xla.checkpoint")


@dataclass(frozen=True)
class _Header:
    """What process 0 tells the others about a snapshot."""

    id: str
    time: float
    metadata: tuple[bytes, ...]


class LocalTier:
    """Snapshots in a folder of this host that only this process writes.

        .STEP.writing -> STEP -> removed: newer snapshots are complete on all processes
                     `-> removed: a process could not write its files, or was killed (by the next LocalTier)

    A disk error drops the snapshot on all processes, is counted, and is logged once; training continues.

    Args:
      path: a folder of this host.
      run: the id of the run: snapshots of other runs are neither read nor removed.
      max_to_keep: the number of snapshots to retain.
      threads: the number of files that this process writes concurrently.
      replicate: whether a peer stores a copy of this process's files.
      group: the group of the thread that calls ``save``; None: one process.
    """

    def __init__(
        self, path: str, run: str, max_to_keep: int, threads: int, replicate: bool, group: _process_group.Group
    ) -> None:
        self.path, self._keep, self._threads, self._group = path, max_to_keep, threads, group
        run_folder = os.path.join(path, run)
        self._folder = os.path.join(run_folder, str(replicas.local_process_index()))
        os.makedirs(self._folder, exist_ok=True)
        self._folders = _snapshots.process_folders(
            run_folder, replicas.local_process_index(), replicas.local_process_count()
        )
        hosts = _process_group.all_gather(group, _leftovers.machine_id())
        self._distance = _peer_copy.choose_distance(hosts) if replicate and len(hosts) > 1 else 0
        self._is_reported = False
        _snapshots.remove_unfinished(self._folders)

    def held(self) -> list[_snapshots.HeldSnapshot]:
        """Return the snapshots of which this process has files."""
        return _snapshots.list_held(self._folders)

    def save(self, step: int, values: Any) -> None:
        """Write a snapshot; ``values`` are a nested state dict of CPU or xla tensors. Collective."""
        written = os.path.join(self._folder, f".{step}.writing")
        _snapshots.remove(written)
        try:
            _checksummed_storage.save(
                values, _checksummed_storage.snapshot_writer(written, self._threads), SPMDSavePlanner(), self._group
            )
        except (OSError, dcp.CheckpointException) as error:
            self._drop(step, written, self._disk_error(error))
            return
        for finish in (self._complete, self._rename):
            failure = finish(step, written)
            if _process_group.any_process(self._group, failure is not None):
                self._drop(step, written, failure)
                return
        _snapshots.remove_old(self._folders, self._keep)

    def _complete(self, step: int, written: str) -> OSError | None:
        """Add the files of other processes and the manifest; return the error, if any. Collective."""
        mine, header, error = _describe_written(written, is_first=_process_group.rank(self._group) == 0)
        files = _process_group.all_gather(self._group, mine)
        header = _process_group.broadcast(self._group, header)
        if header is None:
            return error  # of process 0
        if self._distance:
            assert self._group is not None
            error = _peer_copy.exchange_files(written, files, self._distance, self._group) or error
        names = {name for each in files for name, _ in each if name.endswith(".distcp")}
        try:
            for name, data in zip(_METADATA, header.metadata, strict=True):
                Path(written, name).write_bytes(data)
            _snapshots.Manifest(step, header.id, header.time, (_METADATA[0], *sorted(names))).write(written)
        except OSError as failure:
            error = error or failure
        return error

    def _rename(self, step: int, written: str) -> OSError | None:
        """Give the snapshot its final name; return the error, if any."""
        folder = os.path.join(self._folder, str(step))
        try:
            _snapshots.remove(folder)  # the same step, saved before the run resumed from an earlier one
            os.rename(written, folder)
        except OSError as error:
            return error
        return None

    def _disk_error(self, error: BaseException) -> OSError | None:
        """Return this process's disk error; None if only others have one. Raises any other error."""
        if isinstance(error, OSError):
            return error
        assert isinstance(error, dcp.CheckpointException)
        failures = {rank: failure for rank, (failure, _) in error.failures.items()}
        if not all(isinstance(failure, OSError) for failure in failures.values()):
            raise error
        mine = failures.get(_process_group.rank(self._group))
        return mine if isinstance(mine, OSError) else None

    def _drop(self, step: int, written: str, error: OSError | None) -> None:
        """Remove an incomplete snapshot; report the first disk error of this process."""
        _snapshots.remove(written)
        metrics.count("CheckpointSnapshotFailures")
        if error is None:
            _log.info("the local snapshot of step %d was dropped: another process could not write its files", step)
        elif not self._is_reported:
            self._is_reported = True
            _log.warning(
                "CheckpointManager: the local snapshot of step %d could not be written to %s: %s. Training continues, "
                "and later snapshots are tried; free space there, or set local_path to another folder. Reported once; "
                "the counter CheckpointSnapshotFailures counts them.", step, self.path, error,
            )  # fmt: skip


def _describe_written(written: str, is_first: bool) -> tuple[list[_peer_copy.File], _Header | None, OSError | None]:
    """Return the files of this process, the header if it is process 0, and the error, if any."""
    try:
        header = None
        if is_first:
            metadata = tuple(Path(written, name).read_bytes() for name in _METADATA)
            header = _Header(uuid.uuid4().hex, time.time(), metadata)
        return _peer_copy.list_files(written), header, None
    except OSError as error:  # the folder was removed
        return [], None, error
