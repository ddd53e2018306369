"""Manage checkpoints during training: at step intervals, asynchronously, limited in number, and on preemption."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import torch.distributed as dist

from torch_xla._engine.execution import background_threads
from torch_xla.experimental.distributed_checkpoint import (
    _checksummed_storage,
    _preemption,
    _process_group,
    _tier_choice,
)
from torch_xla.experimental.distributed_checkpoint._local_tier import LocalTier
from torch_xla.experimental.distributed_checkpoint._remote_tier import RemoteTier
from torch_xla.experimental.distributed_checkpoint._shards import copy_to_host
from torch_xla.experimental.distributed_checkpoint._stateful import load_state_dicts, state_dicts

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

    With ``local_path``, snapshots are saved on each host more often than checkpoints under ``path``, and ``restore``
    uses them if the hosts of the job have all files of a step.

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
      local_path: a folder of each host, on its disk or in its memory (``/dev/shm/run``), for snapshots of this run;
        None: no snapshots.
      local_save_interval: with ``local_path``, a snapshot is saved at every ``local_save_interval``-th step.
      local_max_to_keep: number of complete snapshots to retain; while one is written there is one more.
      replicate_to_peer: whether a process on another host, if there is one, stores a copy of the snapshot of each
        process.

    Raises:
      ValueError: the interval is below 1, or a number is negative; ``local_path`` is a URL, or lacks its interval.
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
        *,
        local_path: str | None = None,
        local_save_interval: int | None = None,
        local_max_to_keep: int = 1,
        replicate_to_peer: bool = True,
    ) -> None:
        if save_interval < 1:
            raise ValueError(f"CheckpointManager: save_interval={save_interval} must be 1 or more")
        if (max_to_keep or 0) < 0 or (max_pending_async or 1) < 1 or (num_of_threads or 1) < 1:
            raise ValueError("CheckpointManager: max_to_keep must be 0 or more, the other numbers 1 or more")
        _check_local_arguments(local_path, local_save_interval, local_max_to_keep)
        self.path = str(path) if _checksummed_storage.is_url(str(path)) else os.path.abspath(path)
        self.save_interval, self.max_to_keep = save_interval, max_to_keep or 0
        threads, pending = num_of_threads or 1, max_pending_async or 1
        # A group for each thread: the collectives of a writer's thread must not mix with those of the program.
        group = process_group if process_group is not None else _process_group.create_group()
        self._own_group = _process_group.create_group() if group is not None else None
        self._notice = _preemption.watch_sigterm() if chkpt_on_preemption else None
        self._preempted_at: int | None = None
        self._remote = RemoteTier(self.path, self.max_to_keep, threads, group)
        # One writer for each tier: checkpoints finish in the order of their steps.
        self._writer = background_threads.Runner("CheckpointManager.save_async", pending)
        self._local: LocalTier | None = None
        self._local_interval = local_save_interval or 0
        self._local_writer = background_threads.Runner("CheckpointManager.save_async (local)", pending)
        if local_path is not None:
            run = _process_group.broadcast(self._own_group, self._remote.run_id() if self._is_first() else "")
            local_group = _process_group.create_group() if group is not None else None
            self._local = LocalTier(
                os.path.abspath(local_path), run, local_max_to_keep, threads, replicate_to_peer, local_group
            )
        if self._own_group is not None:
            dist.barrier(group=self._own_group)  # no process lists steps before

    def should_save(self, step: int) -> bool:
        """Return whether to save a checkpoint or a snapshot: at their intervals, and on preemption.

        Args:
          step: the number of the step.
        """
        return any(self._due_tiers(step))

    def save(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Save a checkpoint if one is due, or with ``force``, and wait until it is complete.

        Args:
          step: number of the step.
          state_dict: nested dicts, lists and tuples of tensors and picklable objects. Of an object of the first level
            that has ``state_dict`` and ``load_state_dict``, the state is saved, as by torch.distributed.checkpoint.
          force: save also if no checkpoint is due.

        Returns:
          Whether a checkpoint or a snapshot was saved.
        """
        local, remote = self._due_tiers(step, bool(force))
        if not (local or remote):
            return False
        self.join()
        state = state_dicts(state_dict)
        if local and self._local is not None:
            self._local.save(step, state)
        if remote:
            self._remote.save(step, state)
        return True

    def save_async(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Save as ``save`` does, but wait only until the values are on the CPU; a thread writes them.

        The checkpoint has the current state: tensors are copied, and other mutable objects are pickled. Raises the
        error of an earlier save_async. An error of the last one is printed to stderr at exit, with exit code 1.

        Args:
          step: the number of the step.
          state_dict: see ``save``.
          force: save also if should_save(step) is False.

        Returns:
          Whether a checkpoint or a snapshot is being saved.
        """
        local, remote = self._due_tiers(step, bool(force))
        writers = [(self._local_writer, self._local)] * local + [(self._writer, self._remote)] * remote
        for writer, _ in writers:
            writer.raise_failure()
            writer.wait_for_room()  # before the copies take memory
        if writers:
            values = copy_to_host(state_dicts(state_dict))
            for writer, tier in writers:
                assert tier is not None
                writer.run(partial(tier.save, step, values))
        return bool(writers)

    def restore(self, step: int, state_dict: Any) -> None:
        """Load a checkpoint into the state dict, in place; its tensors retain their shardings, on any mesh.

        Args:
          step: the number of a saved step: see all_steps().
          state_dict: nested dictionaries with a tensor for each saved one.

        Raises:
          ValueError: the step has no complete checkpoint.
          CheckpointError: the checkpoint is corrupt.
        """
        if self._local is not None:
            if self._restore_tiers(step, state_dict) is None:
                raise self._untracked_error(step)
            return
        if step not in self._remote.steps():
            raise self._untracked_error(step)
        self._load_remote(step, state_dict)

    def restore_latest(self, state_dict: Any) -> int | None:
        """Load the newest complete checkpoint or snapshot, in place. All processes restore the same step.

        Args:
          state_dict: see ``restore``.

        Returns:
          The restored step; None if there is none.

        Raises:
          CheckpointError: the checkpoint is corrupt.
        """
        if self._local is not None:
            return self._restore_tiers(None, state_dict)
        steps = self._shared_steps()
        if not steps:
            return None
        self._load_remote(steps[-1], state_dict)
        return steps[-1]

    def all_steps(self) -> list[int]:
        """Return the steps with a complete checkpoint or snapshot, in order.

        Those of save_async appear when they are complete. With ``local_path``, all processes must call this.
        """
        if self._local is None:
            return self._remote.steps()
        complete = _tier_choice.complete_steps(self._own_group, self._local.held())
        return sorted(complete.union(self._shared_steps()))

    def join(self) -> None:
        """Wait until all save_async checkpoints are complete. Raises the error of a failed one."""
        self._local_writer.wait()
        self._writer.wait()

    def reached_preemption(self, step: int) -> bool:
        """Return whether the job was preempted (SIGTERM); True from the first step at which all processes agree.

        Args:
          step: the number of the step.

        Raises:
          RuntimeError: the manager was created with ``chkpt_on_preemption=False``.
        """
        if self._notice is None:
            raise RuntimeError("reached_preemption: this CheckpointManager was created with chkpt_on_preemption=False")
        if self._preempted_at is None and _process_group.any_process(self._own_group, self._notice.has_arrived):
            self._preempted_at = step
            _log.warning("SIGTERM: stopping after step %d", step)
        return self._preempted_at is not None and step >= self._preempted_at

    def _due_tiers(self, step: int, force: bool = False) -> tuple[bool, bool]:
        """Return whether to save a snapshot, and whether to save a checkpoint."""
        due = force or (self._notice is not None and self.reached_preemption(step))
        local = self._local is not None and (due or step % self._local_interval == 0)
        return local, due or step % self.save_interval == 0

    def _restore_tiers(self, step: int | None, state_dict: Any) -> int | None:
        """Load a step, or the newest one, from the tier that has it; return the step. Logs the tier."""
        assert self._local is not None
        self._local_writer.wait_until_done()  # it may be about to remove the snapshot
        self._writer.wait_until_done()
        held = self._local.held()
        source = _tier_choice.choose_source(self._own_group, held, self._shared_steps(), step)
        if source is None:
            return None
        if source.snapshot is None:
            level = logging.WARNING if held and self._is_first() else logging.INFO
            _log.log(level, "restoring step %d from %s: %s", source.step, self.path, source.reason)
            self._load_remote(source.step, state_dict)
            return source.step
        state = state_dicts(state_dict)
        reader = _tier_choice.load_snapshot(self._own_group, source.snapshot, held, state)
        load_state_dicts(state_dict, state)
        _log.info(
            "restored step %d from the local snapshot: read %d files in %s and parts of %d files of other processes%s",
            source.step, reader.local_files, self._local.path, reader.peer_files,
            f" ({source.reason})" if source.reason else "",
        )  # fmt: skip
        return source.step

    def _load_remote(self, step: int, state_dict: Any) -> None:
        state = state_dicts(state_dict)
        self._remote.load(step, state, self._own_group)
        load_state_dicts(state_dict, state)

    def _shared_steps(self) -> list[int]:
        """Return the steps under ``path`` as process 0 lists them: another process may see a later state."""
        return _process_group.broadcast(self._own_group, self._remote.steps() if self._is_first() else [])

    def _untracked_error(self, step: int) -> ValueError:
        known = self.all_steps()
        where = f"in {self.path}" if known else f"{self.path} has no complete checkpoint"
        return ValueError(f"Cannot restore from untracked step {step}. Valid steps are: {known} ({where})")

    def _is_first(self) -> bool:
        return _process_group.rank(self._own_group) == 0


def _check_local_arguments(path: str | None, interval: int | None, max_to_keep: int) -> None:
    if path is None:
        if interval is not None:
            raise ValueError("CheckpointManager: local_save_interval needs local_path, a folder of each host")
        return
    if _checksummed_storage.is_url(str(path)):
        raise ValueError(f"CheckpointManager: local_path={path} must be a folder of the host; use path for a URL")
    if (interval or 0) < 1 or max_to_keep < 1:
        raise ValueError(
            f"CheckpointManager: local_save_interval={interval} and local_max_to_keep={max_to_keep} must be 1 or more"
        )
