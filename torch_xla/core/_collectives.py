"""Collectives between replicas: all-reduce, all-gather, reduce-scatter, all-to-all, permute and broadcast.

Collectives are recorded like any other op: nothing is sent before the step barrier, or before a value is read. All
replicas must issue the same collectives in the same order. With one replica they return their input. ``groups`` is a
list of replica groups (lists of ordinals) of equal size, in which every replica occurs once; None is one group of all
replicas. ``pin_layout``, ``channel_id`` and ``use_global_device_ids`` are accepted for compatibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

import torch

from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import collectives

REDUCE_SUM, REDUCE_MUL, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR = "sum", "mul", "min", "max", "and", "or"

Groups = Sequence[Sequence[int]] | None
T = TypeVar("T", torch.Tensor, list[torch.Tensor])


@overload
def all_reduce(
    reduce_type: str, inputs: torch.Tensor, scale: float = ..., groups: Groups = ..., pin_layout: bool = ...
) -> torch.Tensor: ...
@overload
def all_reduce(
    reduce_type: str, inputs: list[torch.Tensor], scale: float = ..., groups: Groups = ..., pin_layout: bool = ...
) -> list[torch.Tensor]: ...
def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor | list[torch.Tensor]:
    """Reduce over the replica group and multiply by ``scale``.

    There is no gradient; see [torch_xla.core.functions.all_reduce][].

    Args:
      reduce_type: ``sum``, ``mul``, ``min``, ``max``, ``and`` or ``or``; also as constants: ``xm.REDUCE_SUM``.
      inputs: a tensor of any shape, or a list of tensors, which are updated in place.
      scale: factor of the result; ignored with one replica.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.

    Returns:
      A new tensor for a tensor; the list itself for a list.

    Raises:
      ValueError: the tensors are not on one xla device, the reduction is unknown, or the groups do not cover the
        replicas.

    Examples:
      With one replica the sum is the value itself; with ``n`` replicas it is the sum of their ``n`` values:

      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> loss = torch.tensor(2.0, device="xla")
      >>> xm.all_reduce(xm.REDUCE_SUM, loss).item()
      2.0
    """
    tensors = inputs if isinstance(inputs, list) else [inputs]
    if replicas.world_size() == 1:
        return inputs if isinstance(inputs, list) else inputs.detach().clone()
    reduced = collectives.all_reduce(reduce_type, tensors, scale, groups)
    if not isinstance(inputs, list):
        return reduced[0]
    collectives.copy_into(inputs, reduced)
    return inputs


def all_gather(
    value: torch.Tensor,
    dim: int = 0,
    groups: Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """Concatenate the group's values along ``dim``, in order of ordinals.

    There is no gradient; see [torch_xla.core.functions.all_gather][].

    Args:
      value: tensor of the same shape and dtype on every replica of the group.
      dim: dimension along which the values are concatenated.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      output: tensor that receives the result.
      pin_layout, channel_id, use_global_device_ids: accepted for compatibility.

    Returns:
      A tensor whose size along ``dim`` is multiplied by the group size; ``output`` if that is given.

    Raises:
      ValueError: the tensor is not on an xla device, or the groups do not cover the replicas.

    Examples:
      With ``n`` replicas the result has ``3 * n`` elements:

      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> import torch_xla.runtime as xr
      >>> gathered = xm.all_gather(torch.arange(3, device="xla"), dim=0)
      >>> gathered.shape[0] == 3 * xr.world_size()
      True
    """
    if replicas.world_size() == 1:
        return _copy_to_output(value.detach().clone(), output)
    return _copy_to_output(collectives.all_gather(value, dim, groups), output)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor | list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: torch.Tensor | list[torch.Tensor] | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Reduce over the replica group, multiply by ``scale`` and return this replica's shard along ``scatter_dim``.

    Args:
      reduce_type: ``sum``, ``mul``, ``min``, ``max``, ``and`` or ``or``.
      input: a tensor, or a list of tensors, of any shape and dtype.
      scale: factor of the result.
      scatter_dim: dimension that is scattered; its size is a multiple of ``shard_count``.
      shard_count: number of replicas in a group.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      output: tensor, or list of tensors, that receives the result.
      pin_layout, channel_id, use_global_device_ids: accepted for compatibility.

    Returns:
      This replica's shard, or a list of shards for a list.

    Raises:
      ValueError: ``shard_count`` is not the group size or does not divide the dimension.

    Examples:
      Average the rows of all replicas; each replica gets its shard of them:

      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> import torch_xla.runtime as xr
      >>> n = xr.world_size()
      >>> rows = torch.ones(4 * n, 2, device="xla")
      >>> shard = xm.reduce_scatter(xm.REDUCE_SUM, rows, scale=1 / n, scatter_dim=0, shard_count=n)
      >>> list(shard.shape)
      [4, 2]
    """
    if isinstance(input, list):
        outputs = output if isinstance(output, list) else [None] * len(input)
        return [
            _reduce_scatter(reduce_type, tensor, scale, scatter_dim, shard_count, groups, out)
            for tensor, out in zip(input, outputs, strict=True)
        ]
    return _reduce_scatter(
        reduce_type, input, scale, scatter_dim, shard_count, groups, None if isinstance(output, list) else output
    )


def _reduce_scatter(
    reduce_type: str,
    tensor: torch.Tensor,
    scale: float,
    dim: int,
    shard_count: int,
    groups: Groups,
    output: torch.Tensor | None,
) -> torch.Tensor:
    size = collectives.group_size(groups)
    if shard_count != size:
        raise ValueError(f"reduce_scatter: shard_count={shard_count}, but the group size is {size}")
    if replicas.world_size() == 1:
        part = tensor.detach().clone()
    else:
        part = collectives.reduce_scatter(reduce_type, tensor, dim, groups)
    return _copy_to_output(part if scale == 1.0 else part * scale, output)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Split along one dimension, send piece i to replica i of the group, and concatenate the received pieces.

    Args:
      value: tensor of the same shape and dtype on every replica of the group.
      split_dimension: dimension that is split; its size is a multiple of ``split_count``.
      concat_dimension: dimension along which the received pieces are concatenated.
      split_count: number of replicas in a group.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.

    Returns:
      A tensor whose size along ``split_dimension`` is divided, and along ``concat_dimension`` multiplied, by
      ``split_count``.

    Raises:
      ValueError: ``split_count`` is not the group size or does not divide the dimension.
    """
    size = collectives.group_size(groups)
    if split_count != size:
        raise ValueError(f"all_to_all: split_count={split_count}, but the group size is {size}")
    if replicas.world_size() == 1:
        return value.detach().clone()
    return collectives.all_to_all(value, split_dimension, concat_dimension, groups)


def ragged_all_to_all(
    value: torch.Tensor,
    output: torch.Tensor,
    input_offsets: torch.Tensor,
    send_sizes: torch.Tensor,
    output_offsets: torch.Tensor,
    recv_sizes: torch.Tensor,
    groups: Groups = None,
) -> torch.Tensor:
    """Send a slice of rows to each replica of the group, of sizes that are known on the device only.

    This replica sends ``value[input_offsets[i] : input_offsets[i] + send_sizes[i]]`` to replica i of the group, which
    puts it into its output from row ``output_offsets[i]`` on. The arguments are those of ``jax.lax.ragged_all_to_all``,
    which computes it on TPUs and GPUs; on the CPU each replica gathers all rows. There is no
    gradient; see [torch_xla.core.functions.ragged_all_to_all][].

    Args:
      value: rows to send, [rows, ...]; of the same shape on every replica of the group.
      output: [rows to receive, ...], of the dtype of ``value``; rows that no replica sends to are returned unchanged.
      input_offsets: first row to send to each replica; integers [group size], as are the next three.
      send_sizes: number of rows to send to each replica.
      output_offsets: first row of each slice in the output of the replica that receives it.
      recv_sizes: number of rows that each replica sends to this one.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.

    Returns:
      A new tensor of the shape and dtype of ``output``.

    Raises:
      ValueError: Shapes or dtypes do not match.
    """
    sizes = {"input_offsets": input_offsets, "send_sizes": send_sizes, "output_offsets": output_offsets,
             "recv_sizes": recv_sizes}  # fmt: skip
    _check_ragged(value, output, sizes, collectives.group_size(groups))
    if replicas.world_size() > 1:
        return collectives.ragged_all_to_all(value, output, list(sizes.values()), groups)
    rows = torch.arange(output.shape[0], device=output.device)
    source = (rows - output_offsets + input_offsets).clamp(0, max(value.shape[0] - 1, 0))
    is_received = (rows >= output_offsets) & (rows < output_offsets + send_sizes)
    if value.shape[0] == 0:
        return output.detach().clone()
    return torch.where(is_received.reshape(-1, *[1] * (output.dim() - 1)), value.detach()[source], output.detach())


def _check_ragged(value: torch.Tensor, output: torch.Tensor, sizes: dict[str, torch.Tensor], group: int) -> None:
    if value.dim() == 0 or value.dtype != output.dtype or value.shape[1:] != output.shape[1:]:
        raise ValueError(
            "ragged_all_to_all: value and output must have the same dtype and differ in dimension 0 only, got "
            f"{value.dtype}{list(value.shape)} and {output.dtype}{list(output.shape)}"
        )
    for name, given in sizes.items():
        if given.shape != (group,) or given.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"ragged_all_to_all: {name} must have one integer for each of the {group} replicas of the group, got "
                f"{given.dtype}{list(given.shape)}"
            )


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Send ``value`` along each (source, target) pair of ordinals; a replica that is not a target receives zeros.

    Args:
      value: tensor of the same shape and dtype on every replica.
      pairs: (source, target) ordinals; a replica is the source, and the target, of at most one pair.

    Returns:
      A tensor with the shape and dtype of ``value``.
    """
    if replicas.world_size() == 1:
        return value.detach().clone() if [list(pair) for pair in pairs] == [[0, 0]] else torch.zeros_like(value)
    return collectives.collective_permute(value, pairs)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Copy the tensors of one replica to the others, in place.

    Args:
      tensors: xla tensors of any shape and dtype, updated in place.
      root_ordinal: ordinal of the source; with ``groups``, the index of the source in each group.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.
    """
    if replicas.world_size() > 1 and tensors:
        collectives.copy_into(tensors, collectives.broadcast(tensors, root_ordinal, groups))


def _copy_to_output(result: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    if output is None:
        return result
    collectives.copy_into([output], [result])
    return output
