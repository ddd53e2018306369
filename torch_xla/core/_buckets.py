"""Bucketed collectives: group tensors into buckets of a bounded size and run one collective per bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla.core._collectives import Groups, all_gather, reduce_scatter

#: ``func(inputs)``, or ``func(inputs, outputs)`` if there is an ``output_list``; returns one result per input.
Collective = Callable[..., Sequence[torch.Tensor]]


def buckets(tensors: Sequence[torch.Tensor], cap_mb: int) -> Iterator[list[torch.Tensor]]:
    """Split the tensors, in order, into lists of at most ``cap_mb`` MB; a larger tensor has a bucket to itself.

    ``cap_mb=0`` puts all tensors into one bucket.
    """
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
    """Run a collective over buckets of tensors and return the results in the order of the tensors.

        results = CoalescingBuckets(func, tensors, bucket_cap_mb=25)()

    Args:
      func: takes a list of tensors and, if there is an ``output_list``, the list of their outputs; returns one result
        per tensor.
      input_list: tensors of any shape and dtype.
      output_list: one output tensor per input, which ``func`` writes to.
      bucket_cap_mb: maximum size of a bucket in MB; a larger tensor has a bucket to itself.

    Raises:
      ValueError: the lists have different lengths, or the cap is below 1.
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
        """Add a tensor to the bucket, with the output at ``idx``; flush the bucket first if the tensor does not fit.

        Args:
          tensor: the tensor to gather or reduce.
          idx: index of its output.
        """
        if self._bucket and self._size + tensor.nbytes > self._cap:
            self.flush()
        self._bucket.append((tensor, idx))
        self._size += tensor.nbytes

    def flush(self) -> None:
        """Run the collective on the tensors in the bucket."""
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
        """Return the results for all tensors of ``input_list``, in order."""
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
    """All-gather each tensor along ``dim``, one collective per bucket.

    Args:
      input_list: tensors of any shape and dtype.
      dim: dimension along which the values are concatenated.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      output: one tensor per input, which receives the result.
      pin_layout: accepted for compatibility.
      bucket_cap_mb: maximum size of a bucket in MB.

    Returns:
      One gathered tensor per input.

    Raises:
      ValueError: the lists have different lengths, or the cap is below 1.
    """

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
    """Reduce-scatter each tensor, one collective per bucket.

    Args:
      reduce_type: ``sum``, ``mul``, ``min``, ``max``, ``and`` or ``or``.
      input_list: tensors of any shape and dtype.
      scale: factor of the results.
      scatter_dim: dimension that is scattered.
      shard_count: number of replicas in a group.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      output: one tensor per input, which receives the result.
      pin_layout: accepted for compatibility.
      bucket_cap_mb: maximum size of a bucket in MB.

    Returns:
      This replica's shard of each result.

    Raises:
      ValueError: the lists have different lengths, the cap is below 1, or ``shard_count`` is not the group size.
    """
    tensors = [input_list] if isinstance(input_list, torch.Tensor) else input_list

    def scatter(some: list[torch.Tensor], outputs: Any = None) -> Any:
        return reduce_scatter(reduce_type, some, scale, scatter_dim, shard_count, groups, outputs)

    return CoalescingBuckets(scatter, tensors, output, bucket_cap_mb)()
