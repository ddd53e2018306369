"""What replicas exchange: the collectives of ``xm``.

All are recorded, like any other op: nothing is sent before the step barrier, or before a value is asked for, and every
replica must record the same ones in the same order. With one replica they change nothing. ``groups`` is a list of
lists of ordinals that exchange with each other, of one size, which name every replica once; None is all in one group.
``pin_layout``, ``channel_id`` and ``use_global_device_ids`` are accepted for compatibility.
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
    """The ``sum``, ``mul``, ``min``, ``max``, ``and`` or ``or`` over the group, times ``scale``.

    A tensor gives a new tensor; a list is changed in place and returned. With one replica ``scale`` is ignored.
    Raises ValueError for tensors that are not on one xla device, another reduction, or groups that do not fit.
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
    """The group's values in order of ordinals, joined along ``dim``; written to ``output`` where that is given."""
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
    """This replica's part, along ``scatter_dim``, of the reduction over the group, times ``scale``.

    Raises ValueError where ``shard_count`` is not the size of the group, or does not divide the dim.
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
        raise ValueError(f"reduce_scatter: shard_count={shard_count}, but the groups have {size} replicas")
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
    """Split in ``split_count`` along one dim, part i goes to the group's replica i; what arrives, joined along another.

    Raises ValueError where ``split_count`` is not the size of the group, or does not divide the dim.
    """
    size = collectives.group_size(groups)
    if split_count != size:
        raise ValueError(f"all_to_all: split_count={split_count}, but the groups have {size} replicas")
    if replicas.world_size() == 1:
        return value.detach().clone()
    return collectives.all_to_all(value, split_dimension, concat_dimension, groups)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """What this replica receives when each (source, target) of ``pairs`` sends; zeros for who is no target."""
    if replicas.world_size() == 1:
        return value.detach().clone() if [list(pair) for pair in pairs] == [[0, 0]] else torch.zeros_like(value)
    return collectives.collective_permute(value, pairs)


def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Sets the tensors, in place, to what replica ``root_ordinal`` has; with groups: to what each group's root has,

    which is the member at position ``root_ordinal``.
    """
    if replicas.world_size() > 1 and tensors:
        collectives.copy_into(tensors, collectives.broadcast(tensors, root_ordinal, groups))


def _copy_to_output(result: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    if output is None:
        return result
    collectives.copy_into([output], [result])
    return output
