"""The checkpoints under the path that all processes of a job share: a folder or an fsspec URL."""

from __future__ import annotations

import os
import uuid
from contextlib import nullcontext
from typing import Any

import fsspec

from torch_xla.experimental.distributed_checkpoint import _checksummed_storage, _leftovers, _process_group
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner

_RUN_ID = ".run"


class RemoteTier:
    """Complete checkpoints in folders named by their steps, which process 0 lists, renames and deletes.

        .STEP.writing -> STEP -> deleted: beyond the number to keep, or replaced by the same step
                     `-> deleted: the save failed, or the writer was killed (by the next RemoteTier of its host)

    Under a URL, a checkpoint is written in place and complete with its metadata, the last file.

    Args:
      path: an absolute folder, or an fsspec URL.
      max_to_keep: the number of checkpoints to retain; 0: all.
      threads: the number of files that a process writes concurrently.
      group: the group of the thread that calls ``save``.
    """

    def __init__(self, path: str, max_to_keep: int, threads: int, group: _process_group.Group) -> None:
        self.path, self._max_to_keep, self._threads, self._group = path, max_to_keep, threads, group
        self._fs, self._root = fsspec.core.url_to_fs(path)
        if self._is_first():
            self._fs.makedirs(self._root, exist_ok=True)
            self._recover_replaced()

    def steps(self) -> list[int]:
        """Return the steps with a complete checkpoint, in order."""
        if not self._fs.exists(self._root):
            return []
        names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._fs.ls(self._root, detail=False)]
        steps = [int(name) for name in names if name.isascii() and name.isdigit()]
        return sorted(step for step in steps if _checksummed_storage.is_finished(self._fs, f"{self._root}/{step}"))

    def save(self, step: int, values: Any) -> None:
        """Write a checkpoint, on all processes; ``values`` are a nested state dict of CPU or xla tensors."""
        folder = self._folder(step)
        written = folder if _checksummed_storage.is_url(folder) else self._clear_leftover(step)
        guard = _leftovers.lock_folder(written) if written != folder and self._is_first() else nullcontext()
        with guard:
            _checksummed_storage.save(
                values, _checksummed_storage.writer(written, self._threads), SPMDSavePlanner(), self._group
            )
            error = self._finish(step, written, folder) if self._is_first() else None
            if _process_group.any_process(self._group, error is not None) and error is None:
                raise RuntimeError(f"CheckpointManager: process 0 could not finish the checkpoint of step {step}")
            if error is not None:
                raise error

    def _clear_leftover(self, step: int) -> str:
        """Return the folder to write; process 0 deletes what a failed save left there, before any process writes."""
        written = os.path.join(self.path, f".{step}.writing")
        error = None
        if self._is_first() and os.path.exists(written):
            try:
                self._fs.rm(written, recursive=True)
            except OSError as failure:
                error = failure
        if _process_group.any_process(self._group, error is not None) and error is None:
            raise RuntimeError(f"CheckpointManager: process 0 could not delete {written}, which a failed save left")
        if error is not None:
            raise error
        return written

    def load(self, step: int, state_dict: Any, group: _process_group.Group) -> None:
        """Load a checkpoint in place, on all processes. Raises CheckpointError if it is corrupt."""
        try:
            _checksummed_storage.load(
                state_dict, _checksummed_storage.reader(self._folder(step)), SPMDLoadPlanner(), group
            )
        except _checksummed_storage.CheckpointError as error:
            raise _checksummed_storage.CheckpointError(f"{error}; {self._describe_intact(step)}") from error

    def run_id(self) -> str:
        """Return an id of the run that saves under this path: deleting the path begins another run. For process 0."""
        file = f"{self._root}/{_RUN_ID}"
        found = self._fs.cat_file(file).decode(errors="replace").strip() if self._fs.exists(file) else ""
        if not found.isalnum():
            found = uuid.uuid4().hex
            self._fs.pipe_file(file, found.encode())
        return str(found)

    def _is_first(self) -> bool:
        return _process_group.rank(self._group) == 0

    def _folder(self, step: int) -> str:
        return f"{self.path}/{step}" if _checksummed_storage.is_url(self.path) else os.path.join(self.path, str(step))

    def _describe_intact(self, corrupt: int) -> str:
        """Return which checkpoint to restore instead of a corrupt one; reads the files of the others."""
        others = (step for step in reversed(self.steps()) if step != corrupt)
        found = next(
            (step for step in others if _checksummed_storage.is_intact(self._fs, f"{self._root}/{step}")), None
        )
        if found is None:
            return f"{self.path} has no other intact checkpoint"
        return f"the newest intact checkpoint of {self.path} is step {found}: restore({found}, state_dict)"

    def _finish(self, step: int, written: str, folder: str) -> Exception | None:
        """Rename the written folder and delete old checkpoints; return the error, if any."""
        try:
            if written != folder:
                _checksummed_storage.replace(written, folder)
                _leftovers.unlock(folder)
            self._delete_old(step, folder)
        except Exception as failure:
            return failure
        return None

    def _delete_old(self, step: int, folder: str) -> None:
        """Delete the checkpoint that the finished one replaces, and those beyond the number to keep."""
        aside = _checksummed_storage.backup_path(folder)
        if not _checksummed_storage.is_url(folder) and os.path.exists(aside):
            _checksummed_storage.remove(self._fs, aside)
        if not self._max_to_keep:
            return
        # By time: a run that resumes from an earlier step writes lower step numbers than existing ones.
        others = [f"{self._root}/{other}" for other in self.steps() if other != step]
        others.sort(
            key=lambda other: _checksummed_storage.completion_time(self._fs, other)
        )  # by step if times are equal
        for old in others[: max(0, len(others) + 1 - self._max_to_keep)]:
            _checksummed_storage.remove(self._fs, old)

    def _recover_replaced(self) -> None:
        """Remove files of killed processes; restore the name of a checkpoint interrupted between two renames."""
        if _checksummed_storage.is_url(self.path):
            return
        _leftovers.remove_leftovers(self.path)
        for name in os.listdir(self.path):
            step = name.removeprefix(".").removesuffix(".before")
            if name == f".{step}.before" and step.isdigit():
                folder = self._folder(int(step))
                if not _checksummed_storage.is_finished(self._fs, folder):
                    if os.path.exists(folder):
                        self._fs.rm(folder, recursive=True)
                    os.rename(_checksummed_storage.backup_path(folder), folder)
