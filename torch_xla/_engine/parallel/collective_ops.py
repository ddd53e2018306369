"""Define the collectives as operators ``torch.ops.torch_xla.*``: schemas and meta kernels.

They are recorded like any other op and lowered by ``lowering/rules/collectives.py``. The last argument of a collective
is ``groups``: the ordinals of each replica group, separated by -1; an empty list is one group of all replicas of the
job. ``shards`` is the group size. The operators have no kernels for other devices and no gradients (see
core/functions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

_library = torch.library.Library("torch_xla", "DEF")


def _define(schema: str, meta: Callable[..., object]) -> None:
    name = _library.define(schema)
    _library.impl(name, meta, "Meta")


def _identity_meta(inputs: Sequence[torch.Tensor], *_: object) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in inputs]


def _resized_meta(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:dim], size, *x.shape[dim + 1 :]))


def _all_gather(x: torch.Tensor, dim: int, shards: int, groups: Sequence[int]) -> torch.Tensor:
    return _resized_meta(x, dim, x.shape[dim] * shards)


def _reduce_scatter(x: torch.Tensor, op: str, dim: int, shards: int, groups: Sequence[int]) -> torch.Tensor:
    return _resized_meta(x, dim, x.shape[dim] // shards)


def _all_to_all(x: torch.Tensor, split: int, concat: int, shards: int, groups: Sequence[int]) -> torch.Tensor:
    split_result = _resized_meta(x, split, x.shape[split] // shards)
    return _resized_meta(split_result, concat, split_result.shape[concat] * shards)


def _ragged_all_to_all(x: torch.Tensor, output: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(output)


def _permute_meta(x: torch.Tensor, pairs: Sequence[int], groups: Sequence[int]) -> torch.Tensor:
    return torch.empty_like(x)


def _reshard_meta(x: torch.Tensor, sharding: int) -> torch.Tensor:
    return torch.empty_like(x)


def _manual_meta(x: torch.Tensor, sharding: int, shape: Sequence[int], transposed: bool) -> torch.Tensor:
    return x.new_empty(shape)


def _memory_kind_meta(x: torch.Tensor, host: bool) -> torch.Tensor:
    return torch.empty_like(x)


def define() -> None:
    """Register the operators with torch. Call it once per process."""
    _define("all_reduce(Tensor[] inputs, str op, Scalar scale, int[] groups) -> Tensor[]", _identity_meta)
    _define("all_gather(Tensor input, int dim, int shards, int[] groups) -> Tensor", _all_gather)
    _define("reduce_scatter(Tensor input, str op, int dim, int shards, int[] groups) -> Tensor", _reduce_scatter)
    _define("all_to_all(Tensor input, int split, int concat, int shards, int[] groups) -> Tensor", _all_to_all)
    _define(
        "ragged_all_to_all(Tensor input, Tensor output, Tensor input_offsets, Tensor send_sizes, "
        "Tensor output_offsets, Tensor recv_sizes, int[] groups) -> Tensor",
        _ragged_all_to_all,
    )
    _define("collective_permute(Tensor input, int[] pairs, int[] groups) -> Tensor", _permute_meta)
    _define("reshard(Tensor input, int sharding) -> Tensor", _reshard_meta)
    _define("to_manual(Tensor input, int sharding, int[] shape, bool once) -> Tensor", _manual_meta)
    _define("from_manual(Tensor input, int sharding, int[] shape, bool total) -> Tensor", _manual_meta)
    _define("shard_alike(Tensor[] inputs) -> Tensor[]", _identity_meta)
    _define("to_memory_kind(Tensor input, bool host) -> Tensor", _memory_kind_meta)
    _define("optimization_barrier(Tensor[] inputs) -> Tensor[]", _identity_meta)
    _define("collective_broadcast(Tensor[] inputs, int root, int[] groups) -> Tensor[]", _identity_meta)
