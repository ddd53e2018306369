"""Checkpoints while training: every so many steps, the last few kept, in the background, and when the job is to end."""

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
            manager.restore(steps[-1], state)             # in place, into whatever shardings it has now
        for step, batch in enumerate(loader):
            ...
            manager.save_async(step, state)                # every 100 steps; or now, if the job is to end
            if manager.reached_preemption(step):
                break
        manager.join()

    The format is torch.distributed.checkpoint's; of a sharded tensor each process writes what its devices hold. With
    several processes all of them call the same methods in the same order. A process may be killed at any moment: a
    checkpoint that was finished stays whole, and one that was not is never seen; the next manager on that machine
    removes what is left of it. (Under a URL of fsspec, saving a step
    a second time replaces its checkpoint file by file.)

    Args:
      path: a folder, on a filesystem that all processes share, or a URL that fsspec knows.
      save_interval: ``save`` and ``save_async`` do something at every so manyth step.
      max_to_keep: how many checkpoints stay: the one just finished, and those written last before it; 0: all.
      max_pending_async: so many checkpoints of save_async are on their way at once; the next one waits.
      num_of_threads: how many files a process writes at once.
      process_group: of CPU tensors, over all processes, which nobody else uses; None: one of gloo's is made, where
        there are several.
      chkpt_on_preemption: SIGTERM, which schedulers send before they take a machine away, does not end the process:
        the next step is saved, and reached_preemption says so. Only where the manager is made in the main thread.

    Raises ValueError for an interval below 1, or a negative number; RuntimeError in a job of several processes that
    have not called torch.distributed.init_process_group.
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
        # Two groups: what the writer's thread exchanges must not meet what the program does.
        self._group = process_group if process_group is not None else _group_of_all()
        self._own_group = _group_of_all() if self._group is not None else None
        self._preempted = _on_sigterm() if chkpt_on_preemption else None
        self._preempted_at: int | None = None
        # One writer: checkpoints are finished in the order of their steps.
        self._writer = background_threads.Runner("CheckpointManager.save_async", max_pending_async or 1)
        if self._is_first():
            self._fs.makedirs(self._root, exist_ok=True)
            self._recover_replaced()
        if self._own_group is not None:
            dist.barrier(group=self._own_group)  # nobody looks for steps before

    def should_save(self, step: int) -> bool:
        """Whether a checkpoint is due: at every ``save_interval``th step, and when the job is to end."""
        due = self._preempted is not None and self.reached_preemption(step)
        return due or step % self.save_interval == 0

    def save(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """Saves a checkpoint, if one is due or with ``force``, and waits until it is finished. Whether it did.

        A state dict is nested dicts, lists and tuples of tensors, and of what pickle can save.
        """
        if not (force or self.should_save(step)):
            return False
        self.join()
        self._save(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: Any, force: bool | None = False) -> bool:
        """As save, but waits only until the values are on the CPU; a thread writes them. Whether it did.

        The checkpoint has the state as it is now: tensors are copied, and what else may change is pickled.
        Raises what an earlier one has failed with. What the last one fails with goes to stderr when the process ends,
        with exit code 1.
        """
        if not (force or self.should_save(step)):
            return False
        self._writer.raise_failure()
        self._writer.wait_for_room()  # before the values take memory
        self._writer.run(partial(self._save, step, copy_to_host(state_dict)))
        return True

    def restore(self, step: int, state_dict: Any) -> None:
        """Loads a checkpoint into the state dict, in place; its tensors keep their shardings, on any mesh.

        Raises ValueError for a step without a finished checkpoint, CheckpointError for a damaged one.
        """
        known = self.all_steps()
        if step not in known:
            raise ValueError(f"Cannot restore from untracked step {step}. Valid steps are: {known}")
        _checksummed_storage.load(
            state_dict, _checksummed_storage.reader(self._folder(step)), SPMDLoadPlanner(), self._own_group
        )

    def all_steps(self) -> list[int]:
        """The steps of which there is a finished checkpoint, in order. Those of save_async come when they are done."""
        if not self._fs.exists(self._root):
            return []
        names = [entry.rstrip("/").rsplit("/", 1)[-1] for entry in self._fs.ls(self._root, detail=False)]
        steps = [int(name) for name in names if name.isascii() and name.isdigit()]
        return sorted(step for step in steps if _checksummed_storage.is_finished(self._fs, f"{self._root}/{step}"))

    def join(self) -> None:
        """Waits until every checkpoint of save_async is finished. Raises what one has failed with."""
        self._writer.wait()

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is to end (SIGTERM): True from the step at which all processes know.

        Raises RuntimeError with ``chkpt_on_preemption=False``.
        """
        if self._preempted is None:
            raise RuntimeError("reached_preemption: this CheckpointManager was made with chkpt_on_preemption=False")
        if self._preempted_at is None and self._anyone(self._preempted.is_set()):
            self._preempted_at = step
            _log.warning("SIGTERM: step %d is the last one", step)
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
                raise RuntimeError(
                    f"CheckpointManager: the first process could not finish the checkpoint of step {step}"
                )
            if error is not None:
                raise error

    def _finish(self, step: int, written: str, folder: str) -> Exception | None:
        """Gives what was written its name, and drops what is too many; what that failed with."""
        try:
            if written != folder:
                _checksummed_storage.replace(written, folder)
                _leftovers.unlock(folder)
            self._delete_old(step, folder)
        except Exception as failure:
            return failure
        return None

    def _delete_old(self, step: int, folder: str) -> None:
        """Deletes what the checkpoint just finished replaces, and those that are too many."""
        aside = _checksummed_storage.backup_path(folder)
        if not _checksummed_storage.is_url(folder) and os.path.exists(aside):
            _checksummed_storage.remove(self._fs, aside)
        if not self.max_to_keep:
            return
        # By time: a run that goes on from an earlier step writes lower numbers than those it finds.
        others = [f"{self._root}/{other}" for other in self.all_steps() if other != step]
        others.sort(
            key=lambda other: _checksummed_storage.completion_time(self._fs, other)
        )  # by step where times are equal
        for old in others[: max(0, len(others) + 1 - self.max_to_keep)]:
            _checksummed_storage.remove(self._fs, old)

    def _recover_replaced(self) -> None:
        """Removes what killed processes left; a checkpoint cut off between two renames gets its name again."""
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
                f"CheckpointManager: the {replicas.process_count()} processes of the job have to agree on what each of "
                "them writes; import torch_xla.distributed.xla_backend, and call torch.distributed.init_process_group("
                "'gloo', init_method='xla://') first"
            )
        return None
    if dist.get_world_size() == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group


_sigterm: threading.Event | None = None


def _on_sigterm() -> threading.Event:
    """Set when SIGTERM comes, which from now on does nothing else but what a handler of the user's does."""
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
