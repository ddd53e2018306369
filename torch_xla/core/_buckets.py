"""Collectives of many tensors, a bucket of them at a time: what waits for the others waits for its bucket alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla.core._collectives import Groups, all_gather, reduce_scatter

#: ``func(inputs)``, or ``func(inputs, outputs)`` where there are outputs to write to: the results.
Collective = Callable[..., Sequence[torch.Tensor]]


def buckets(tensors: Sequence[torch.Tensor], cap_mb: int) -> Iterator[list[torch.Tensor]]:
    """The tensors in order, in lists of at most ``cap_mb`` MB, or of one tensor that is larger; 0: all in one."""
    bucket: list[torch.Tensor] = [] if cap_mb else list(tensors)
    size = 0
    for tensor in tensors if cap_mb else ():
        count = tensor.nbytes
        if bucket and size + count > cap_mb << 20:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += count
    if bucket:
        yield bucket


class CoalescingBuckets:
    """Tensors that are given to a collective in buckets, whose results come back in the order of the tensors.

        results = CoalescingBuckets(func, tensors, bucket_cap_mb=25)()

    Args:
      func: takes a list of tensors and, where there is an ``output_list``, those of its tensors that belong to them;
        gives a result for each.
      input_list: the tensors.
      output_list: as many tensors, which ``func`` writes to.
      bucket_cap_mb: the MB of a bucket; a tensor that is larger has one of its own.

    Raises ValueError for lists of different lengths, or a cap below 1.
    """

    def __init__(
        self,
        func: Collective,
        input_list: Sequence[torch.Tensor],
        output_list: Sequence[torch.Tensor] | None = None,
        bucket_cap_mb: int = 160,
    ) -> None:
        if output_list is not None and len(output_list) != len(input_list):
            raise ValueError(f"CoalescingBuckets: {len(output_list)} outputs for {len(input_list)} inputs")
        if bucket_cap_mb < 1:
            raise ValueError(f"CoalescingBuckets: bucket_cap_mb={bucket_cap_mb} must be 1 or more")
        self._func, self._inputs, self._outputs = func, input_list, output_list
        self._cap = bucket_cap_mb << 20
        self._bucket: list[tuple[torch.Tensor, int]] = []
        self._size = 0
        self._results: dict[int, torch.Tensor] = {}

    def add(self, tensor: torch.Tensor, idx: int) -> None:
        """Puts a tensor, whose output is that at ``idx``, into the bucket; what it has no room with goes first."""
        if self._bucket and self._size + tensor.nbytes > self._cap:
            self.flush()
        self._bucket.append((tensor, idx))
        self._size += tensor.nbytes

    def flush(self) -> None:
        """Gives the tensors of the bucket to the collective."""
        if not self._bucket:
            return
        bucket, self._bucket, self._size = self._bucket, [], 0
        tensors, places = [tensor for tensor, _ in bucket], [idx for _, idx in bucket]
        if self._outputs is None:
            found = self._func(tensors)
        else:
            found = self._func(tensors, [self._outputs[idx] for idx in places])
        self._results.update(zip(places, found, strict=True))

    def __call__(self) -> list[torch.Tensor]:
        """The results for all tensors of ``input_list``, in order."""
        for idx, tensor in enumerate(self._inputs):
            self.add(tensor, idx)
        self.flush()
        results, self._results = self._results, {}
        return [results[idx] for idx in range(len(self._inputs))]


def all_gather_bucketized(
    input_list: Sequence[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """all_gather of each tensor, in buckets; written to the tensors of ``output`` where these are given."""

    def gather(tensors: list[torch.Tensor], outputs: Any = None) -> list[torch.Tensor]:
        outs = outputs or [None] * len(tensors)
        return [all_gather(t, dim, groups, out) for t, out in zip(tensors, outs, strict=True)]

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb)()


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: torch.Tensor | Sequence[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Sequence[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> list[torch.Tensor]:
    """reduce_scatter of each tensor, in buckets; written to the tensors of ``output`` where these are given."""
    tensors = [input_list] if isinstance(input_list, torch.Tensor) else input_list

    def scatter(some: list[torch.Tensor], outputs: Any = None) -> Any:
        return reduce_scatter(reduce_type, some, scale, scatter_dim, shard_count, groups, outputs)

    return CoalescingBuckets(scatter, tensors, output, bucket_cap_mb)()
