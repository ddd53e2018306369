"""Data of elastic training: the batches of a job whose number of processes changes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from torch_xla._engine.job import replicas

__all__ = ["GlobalBatchSampler"]


class GlobalBatchSampler(Sampler[list[int]]):
    """Yields this process's part of each global batch, from a step on: the same data whatever the number of processes.

    A batch sampler for ``torch.utils.data.DataLoader``. The global batch of a step depends on the seed and the step
    only, so a job that continues from a checkpoint, with more or fewer processes, reads what it would have read without
    the interruption. Each epoch has a new order; a last batch that is not full is dropped. The iteration does not end.

    Args:
      data_size: the number of samples of the dataset.
      batch_size: the number of samples of a global batch; a multiple of every number of processes that may occur.
      first_step: the step to begin with, counted from the begin of the training.
      shuffle: whether each epoch has another order; else every epoch has that of the dataset.
      seed: the seed of the orders.
      num_replicas: the number of parts of a batch; None: the number of processes, or of replicas.
      rank: the part of this process; None: its rank.

    Raises:
      ValueError: the batch cannot be divided among the processes, or the dataset has no full batch.

    Examples:
      >>> from torch_xla.distributed.elastic import GlobalBatchSampler
      >>> batches = iter(GlobalBatchSampler(8, 4, first_step=1, shuffle=False, num_replicas=2, rank=1))
      >>> next(batches), next(batches)
      ([6, 7], [2, 3])
    """

    def __init__(
        self,
        data_size: int,
        batch_size: int,
        first_step: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        count = replicas.host_group_size() if num_replicas is None else num_replicas
        self._rank = replicas.host_group_rank() if rank is None else rank
        if not 0 <= self._rank < count:
            raise ValueError(f"GlobalBatchSampler: rank={self._rank} must be in [0, {count})")
        if batch_size < 1 or batch_size % count:
            raise ValueError(
                f"GlobalBatchSampler: batch_size={batch_size} must be a multiple of the {count} processes; choose a "
                "multiple of every number of processes that the job may have"
            )
        if data_size < batch_size:
            raise ValueError(f"GlobalBatchSampler: data_size={data_size} is below batch_size={batch_size}")
        self._data_size, self._batch_size, self._each = data_size, batch_size, batch_size // count
        self._first_step, self._shuffle, self._seed = first_step, shuffle, seed

    def __iter__(self) -> Iterator[list[int]]:
        in_epoch = self._data_size // self._batch_size
        epoch, batch = divmod(self._first_step, in_epoch)
        while True:
            order = self._epoch_order(epoch)
            for start in range(batch * self._batch_size, in_epoch * self._batch_size, self._batch_size):
                mine = start + self._rank * self._each
                yield order[mine : mine + self._each]
            epoch, batch = epoch + 1, 0

    def _epoch_order(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self._data_size))
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(self._data_size, generator=generator).tolist()
        return order
