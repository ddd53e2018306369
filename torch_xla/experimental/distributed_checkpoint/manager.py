"""Manage checkpoints during training: at step intervals, asynchronously, limited in number, and on preemption."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import nullcontext
from functools import partial
from types import FrameType
from typing import Any

import fsspec
import torch
import torch.distributed as dist

from torch_xla._engine.execution import background_threads
from torch_xla._engine.job import replicas
from torch_xla.experimental.distributed_checkpoint import _checksummed_storage, _leftovers
from torch_xla.experimental.distributed_checkpoint._shards import copy_to_host
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner

__all__ = ["CheckpointManager"]

_log = logging.getLogger("torch_xla.checkpoint")


class CheckpointManager:
    """Saves and restores the checkpoints of a run, each a folder named by its step.

        manager = CheckpointManager("checkpoints", save_interval=100, max_to_keep=3)
        if steps := manager.all_steps():
            manager.restore(steps[-1], state)             # in place, into the current shardings
        for step, batch in enumerate(loader):
            ...
            manager.save_async(step, state)                # every 100 steps, and on preemption
            if manager.reached_preemption(step):
                break
        manager.join()

    The format is torch.distributed.checkpoint's; each process writes the shards of its devices. With several processes,
    all of them must call the same methods in the same order. A process may be killed at any time: finished checkpoints
    stay complete, and unfinished ones are never listed; the next manager on that host removes their files. (Under an
    fsspec URL, saving a step a second time replaces its checkpoint file by file.)

    Args:
      path: a folder on a filesystem that all processes share, or an fsspec URL.
      save_interval: ``save`` and ``save_async`` save at every ``save_interval``-th step.
      max_to_keep: number of checkpoints to retain, the latest ones by completion time; 0: all.
      max_pending_async: maximum number of pending save_async checkpoints; a further call waits.
      num_of_threads: number of files that a process writes concurrently.
      process_group: a group for CPU tensors over all processes, used by this manager only; None: create a gloo group
        if there are several processes.
      chkpt_on_preemption: handle SIGTERM, which schedulers send before they preempt a host: the process does not exit,
        the next step is saved, and reached_preemption returns True. Only for managers created in the main thread.

    Raises:
      ValueError: the interval is below 1, or a number is negative.
      RuntimeError: a job of several processes has not called torch.distributed.init_process_group.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.distributed_checkpoint import CheckpointManager
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> manager = CheckpointManager("checkpoints", save_interval=10, max_to_keep=2)
      >>> for step in range(31):
      ...     saved = manager.save(step, {"model": model.state_dict()})
      >>> manager.all_steps()
      [20, 30]
      >>> state = {"model": model.state_dict()}
      >>> manager.restore(30, state)
      >>> result = model.load_state_dict(state["model"])
    """

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: dist.ProcessGroup | None = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        if save_interval < 1:
            raise ValueError(f"CheckpointManager: save_interval={save_interval} must be 1 or more")
        if (max_to_keep or 0) < 0 or (max_pending_async or 1) < 1 or (num_of_threads or 1) < 1:
            raise ValueError("CheckpointManager: max_to_keep must be 0 or more, the other numbers 1 or more")
        self.path = str(path) if _checksummed_storage.is_url(str(path)) else os.path.abspath(path)
        self.save_interval, self.max_to_keep = save_interval, max_to_keep or 0
        self._threads = num_of_threads or 1
        self._fs, self._root = fsspec.core.url_to_fs(self.path)
        # Two groups: the collectives of the writer's thread must not mix with those of the program.
        self._group = process_group if process_group is not None else _group_of_all()
        self._own_group = _group_of_all() if self._group is not None else None
        self._preempted = _on_sigterm() if chkpt_on_preemption else None
        self._preempted_at: int | None = None
        # One writer: checkpoints finish in the order of their steps.
        self._writer = background_threads.Runner("CheckpointManager.save_async", max_pending_async or 1)
        if self._is_first():
            self._fs.makedirs(self._root, exist_ok=True)
            self._recover_replaced()
        if self._own_group is not None:
            dist.barrier(group=self._own_group)  # no process lists steps before

    def should_save(self, step: int) -> bool:
        """Return whether to save a checkpoint: at every ``save_interval``-th step, and on preemption.

        Args:
          step: the number of the step.
        """
        due = self._preempted is not None and self.reached_preemption(step)
        return due or step % self.save_interval == 0

    def save(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Save a checkpoint if one is due, or with ``force``, and wait until it is complete.

        Args:
          step: number of the step.
          state_dict: nested dicts, lists and tuples of tensors and picklable objects.
          force: save also if no checkpoint is due.

        Returns:
          Whether a checkpoint was saved.
        """
        if not (force or self.should_save(step)):
            return False
        self.join()
        self._save(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Save as ``save`` does, but wait only until the values are on the CPU; a thread writes them.

        The checkpoint has the current state: tensors are copied, and other mutable objects are pickled. Raises the
        error of an earlier save_async. An error of the last one is printed to stderr at exit, with exit code 1.

        Args:
          step: the number of the step.
          state_dict: nested dictionaries of tensors and other objects.
          force: save also if should_save(step) is False.

        Returns:
          Whether a checkpoint is being saved.
        """
        if not (force or self.should_save(step)):
            return False
        self._writer.raise_failure()
        self._writer.wait_for_room()  # before the copies take memory
        self._writer.run(partial(self._save, step, copy_to_host(state_dict)))
        return True

    def restore(self, step: int, state_dict: Any) -> None:
        """Load a checkpoint into the state dict, in place; its tensors retain their shardings, on any mesh.

        Args:
          step: the number of a saved step: see all_steps().
          state_dict: nested dictionaries with a tensor for each saved one.

        Raises:
          ValueError: the step has no complete checkpoint.
          CheckpointError: the checkpoint is corrupt.
        """
        known = self.all_steps()
        if step not in known:
            where = f"in {self.path}" if known else f"{self.path} has no complete checkpoint"
            raise ValueError(f"Cannot restore from untracked step {step}. Valid steps are: {known} ({where})")
        try:
            _checksummed_storage.load(
                state_dict, _checksummed_storage.reader(self._folder(step)), SPMDLoadPlanner(), self._own_group
            )
        except _checksummed_storage.CheckpointError as error:
            raise _checksummed_storage.CheckpointError(f"{error}; {self._describe_intact(step)}") from error

    def all_steps(self) -> list[int]:
        """Return the steps with a complete checkpoint, in order. Those of save_async appear when they are complete."""
        if not self._fs.exists(self._root):
            return []
        names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._fs.ls(self._root, detail=False)]
        steps = [int(name) for name in names if name.isascii() and name.isdigit()]
        return sorted(step for step in steps if _checksummed_storage.is_finished(self._fs, f"{self._root}/{step}"))

    def _describe_intact(self, corrupt: int) -> str:
        """Return which checkpoint to restore instead of a corrupt one; reads the files of the others."""
        others = (step for step in reversed(self.all_steps()) if step != corrupt)
        found = next(
            (step for step in others if _checksummed_storage.is_intact(self._fs, f"{self._root}/{step}")), None
        )
        if found is None:
            return f"{self.path} has no other intact checkpoint"
        return f"the newest intact checkpoint of {self.path} is step {found}: restore({found}, state_dict)"

    def join(self) -> None:
        """Wait until all save_async checkpoints are complete. Raises the error of a failed one."""
        self._writer.wait()

    def reached_preemption(self, step: int) -> bool:
        """Return whether the job was preempted (SIGTERM); True from the first step at which all processes agree.

        Args:
          step: the number of the step.

        Raises:
          RuntimeError: the manager was created with ``chkpt_on_preemption=False``.
        """
        if self._preempted is None:
            raise RuntimeError("reached_preemption: this CheckpointManager was created with chkpt_on_preemption=False")
        if self._preempted_at is None and self._anyone(self._preempted.is_set()):
            self._preempted_at = step
            _log.warning("SIGTERM: stopping after step %d", step)
        return self._preempted_at is not None and step >= self._preempted_at

    def _anyone(self, mine: bool) -> bool:
        return mine if self._own_group is None else _any_process(self._own_group, mine)

    def _is_first(self) -> bool:
        return self._group is None or dist.get_rank(self._group) == 0

    def _folder(self, step: int) -> str:
        return f"{self.path}/{step}" if _checksummed_storage.is_url(self.path) else os.path.join(self.path, str(step))

    def _save(self, step: int, values: Any) -> None:
        folder = self._folder(step)
        if _checksummed_storage.is_url(folder):
            written = folder
        else:
            written = os.path.join(self.path, f".{step}.writing")
            if self._is_first() and os.path.exists(written):
                self._fs.rm(written, recursive=True)
        guard = _leftovers.lock_folder(written) if written != folder and self._is_first() else nullcontext()
        with guard:
            _checksummed_storage.save(
                values, _checksummed_storage.writer(written, self._threads), SPMDSavePlanner(), self._group
            )
            error = self._finish(step, written, folder) if self._is_first() else None
            if self._group is not None and _any_process(self._group, error is not None) and error is None:
                raise RuntimeError(f"CheckpointManager: process 0 could not finish the checkpoint of step {step}")
            if error is not None:
                raise error

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
        """Delete the checkpoint that the finished one replaces, and those beyond ``max_to_keep``."""
        aside = _checksummed_storage.backup_path(folder)
        if not _checksummed_storage.is_url(folder) and os.path.exists(aside):
            _checksummed_storage.remove(self._fs, aside)
        if not self.max_to_keep:
            return
        # By time: a run that resumes from an earlier step writes lower step numbers than existing ones.
        others = [f"{self._root}/{other}" for other in self.all_steps() if other != step]
        others.sort(
            key=lambda other: _checksummed_storage.completion_time(self._fs, other)
        )  # by step if times are equal
        for old in others[: max(0, len(others) + 1 - self.max_to_keep)]:
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


def _any_process(group: dist.ProcessGroup, mine: bool) -> bool:
    flag = torch.tensor([int(mine)])
    dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return bool(flag.item())


def _group_of_all() -> dist.ProcessGroup | None:
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


_sigterm: threading.Event | None = None


def _on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets; SIGTERM then only runs a handler that the user has installed."""
    global _sigterm
    if _sigterm is not None:
        return _sigterm
    event = threading.Event()
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: FrameType | None) -> None:
            event.set()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, note)
        _sigterm = event
    return event
