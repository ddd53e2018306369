"""Records collectives: checks what they are given, and calls the operators of ``collective_ops``.

A collective must be in the graph of every replica, also of one where nobody keeps its result: so one result of each is
kept until the graph is cut (``release``). The same holds for a read in the middle of a step, of which each replica may
do another: replicas that have read a result have run its program, so those that have not run that one by itself, before
what they read later (``unread_before``).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.job import replicas, thread_group

_kept: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

P = ParamSpec("P")
R = TypeVar("R", torch.Tensor, list[torch.Tensor])

#: Where values are read and nothing is ever cut, results that have been computed are let go at this number.
_MOST_KEPT = 64

#: How many collectives graphs have, by their keys.
_counts: LruCache[int] = LruCache()

REDUCTIONS = ("sum", "mul", "min", "max", "and", "or")

Groups = Sequence[Sequence[int]] | None


def flatten_groups(op: str, groups: Groups) -> list[int]:
    """Groups of ordinals with -1 between them; empty for one group of all replicas.

    Raises ValueError unless the groups are of one size and name every replica of the job once.
    """
    if not groups:
        return []
    if isinstance(groups, PartialGroup):
        return list(groups[0])
    everyone = list(range(replicas.world_size()))
    named = sorted(ordinal for group in groups for ordinal in group)
    sizes = {len(group) for group in groups}
    if named != everyone or len(sizes) > 1:
        raise ValueError(
            f"{op}: groups={[list(group) for group in groups]} must be of one size and name each of the "
            f"{len(everyone)} replicas once (at {user_frames.user_line()})"
        )
    if len(groups) == 1 and list(groups[0]) == everyone:
        return []
    return [number for group in groups for number in (-1, *group)][1:]


def group_size(groups: Groups) -> int:
    """The number of replicas in a group."""
    return len(groups[0]) if groups else replicas.world_size()


class PartialGroup(list[list[int]]):
    """A group that need not hold all replicas: those outside take no part. ``Members([[2, 3]])``."""


def _kept_until_cut(result: torch.Tensor) -> torch.Tensor:
    kept = _kept[result.device.index]
    kept.append(result.detach())
    if len(kept) > _MOST_KEPT:
        kept[:] = [tensor for tensor in kept if recorder.bindings().nodes_of([tensor])[0].pending]
    return result


def pending_results(device: int) -> list[torch.Tensor]:
    """A result of each collective that has been recorded since the last cut."""
    return _kept[device]


def pending_results_before(device: int, nodes: Sequence[Any]) -> Sequence[Any]:
    """Results of collectives that must be computed, in order and each alone, before the pending ``nodes`` are.

    They were recorded before one that the nodes need, and the nodes do not need them. The execution lock is held.
    """
    kept = (recorder.bindings().nodes_of([tensor])[0] for tensor in _kept.get(device, ()))
    results = [node for node in kept if node.pending]
    needed = _count(device, nodes) if results else 0
    if needed == 0 or needed >= len(results):
        return ()
    apart = [_count(device, [*nodes, result]) > needed for result in results]
    last = max((i for i, is_apart in enumerate(apart) if not is_apart), default=0)
    return [result for result, is_apart in zip(results[:last], apart, strict=False) if is_apart]


def _count(device: int, wanted: Sequence[Any]) -> int:
    graph = recorder.bindings().collect(device, list(wanted))
    found = _counts.get(graph.key)
    if found is None:
        found = sum(map(graph_spec.is_collective, graph_spec.describe_graph(graph).nodes))
        _counts.put(graph.key, found)
    return found


def release_pending(device: int) -> None:
    """Called when the graph of a device has been cut and run."""
    _kept.pop(device, None)


def _sync_thread_replicas(record: Callable[P, R]) -> Callable[P, R]:
    """Among threads a collective is a program of its own: what is pending runs before it, and it runs at once.

    One program serves all threads of a process, so it must be the same for all; the graphs around it need not be.
    """

    @functools.wraps(record)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        threads = thread_group.current_group()
        if threads is None:
            return record(*args, **kwargs)
        device = replicas.local_devices()[replicas.global_ordinal()]
        threads.cut(device)
        result = record(*args, **kwargs)
        tensors: Any = result
        try:
            threads.compute([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        except BaseException as error:
            # The exception's frames would keep the op in the graph, where the next step would meet it.
            del result, tensors
            release_pending(device)
            raise error.with_traceback(None) from error.__cause__
        return result

    return run


def check_tensors(op: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises ValueError unless all are xla tensors of one device."""
    where = {tensor.device for tensor in tensors}
    if any(device.type != "xla" for device in where) or len(where) > 1:
        shown = ", ".join(f"{t.dtype}{list(t.shape)} on {t.device}" for t in tensors[:4])
        raise ValueError(f"{op}: needs tensors of one xla device, got {shown} (at {user_frames.user_line()})")


def checked_dim(op: str, tensor: torch.Tensor, dim: int) -> int:
    """``dim`` counted from the front. Raises IndexError for one that the tensor does not have."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"{op}: {tensor.dtype}{list(tensor.shape)} has no dim {dim} (at {user_frames.user_line()})")
    return dim % tensor.dim()


def _check_shares(op: str, tensor: torch.Tensor, dim: int, count: int) -> None:
    if tensor.shape[dim] % count:
        raise ValueError(
            f"{op}: dim {dim} of {tensor.dtype}{list(tensor.shape)} has {tensor.shape[dim]} elements, which {count} "
            f"replicas cannot share equally (at {user_frames.user_line()})"
        )


def _check_order(op: str, tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if op in ("and", "or") and (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(f"all_reduce: {op!r} needs integers or bools, got {tensor.dtype}{list(tensor.shape)}")
        if op in ("min", "max") and tensor.is_complex():
            raise ValueError(f"all_reduce: {tensor.dtype} has no order, so no {op!r}")


@_sync_thread_replicas
@torch.no_grad()
def all_reduce(
    op: str, tensors: Sequence[torch.Tensor], scale: float = 1.0, groups: Groups = None
) -> list[torch.Tensor]:
    """New tensors, each the reduction of that tensor over the group, times ``scale``. ``op`` is one of REDUCTIONS."""
    if op not in REDUCTIONS:
        raise ValueError(f"all_reduce: {op!r} is none of {', '.join(REDUCTIONS)} (at {user_frames.user_line()})")
    check_tensors("all_reduce", tensors)
    if op in ("and", "or", "min", "max"):
        _check_order(op, tensors)
    flat = flatten_groups("all_reduce", groups)
    return _as_list(torch.ops.torch_xla.all_reduce(tensors, op, scale, flat)) if tensors else []


def _as_list(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    _kept_until_cut(results[0])
    return list(results)


@_sync_thread_replicas
@torch.no_grad()
def all_gather(tensor: torch.Tensor, dim: int, groups: Groups = None) -> torch.Tensor:
    """The group's tensors, one after the other along ``dim``."""
    check_tensors("all_gather", [tensor])
    dim = checked_dim("all_gather", tensor, dim)
    gathered: torch.Tensor = torch.ops.torch_xla.all_gather(
        tensor, dim, group_size(groups), flatten_groups("all_gather", groups)
    )
    return _kept_until_cut(gathered)


@_sync_thread_replicas
@torch.no_grad()
def reduce_scatter(op: str, tensor: torch.Tensor, dim: int, groups: Groups = None) -> torch.Tensor:
    """This replica's part, along ``dim``, of the reduction over the group."""
    if op not in REDUCTIONS:
        raise ValueError(f"reduce_scatter: {op!r} is none of {', '.join(REDUCTIONS)} (at {user_frames.user_line()})")
    check_tensors("reduce_scatter", [tensor])
    dim = checked_dim("reduce_scatter", tensor, dim)
    _check_shares("reduce_scatter", tensor, dim, group_size(groups))
    part: torch.Tensor = torch.ops.torch_xla.reduce_scatter(
        tensor, op, dim, group_size(groups), flatten_groups("reduce_scatter", groups)
    )
    return _kept_until_cut(part)


@_sync_thread_replicas
@torch.no_grad()
def all_to_all(tensor: torch.Tensor, split: int, concat: int, groups: Groups = None) -> torch.Tensor:
    """Split along ``split``, part i sent to the group's replica i; what arrives, joined along ``concat``."""
    check_tensors("all_to_all", [tensor])
    split, concat = checked_dim("all_to_all", tensor, split), checked_dim("all_to_all", tensor, concat)
    _check_shares("all_to_all", tensor, split, group_size(groups))
    joined: torch.Tensor = torch.ops.torch_xla.all_to_all(
        tensor, split, concat, group_size(groups), flatten_groups("all_to_all", groups)
    )
    return _kept_until_cut(joined)


@_sync_thread_replicas
@torch.no_grad()
def collective_permute(tensor: torch.Tensor, pairs: Sequence[Sequence[int]], groups: Groups = None) -> torch.Tensor:
    """What the replica that ``pairs`` of (source, target) names as this one's source had; zeros where none does."""
    check_tensors("collective_permute", [tensor])
    world = replicas.world_size()
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    outside = any(not 0 <= ordinal < world for ordinal in sources + targets)
    if outside or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ValueError(
            f"collective_permute: pairs={[list(pair) for pair in pairs]} must be (source, target) ordinals of {world} "
            f"replicas, no source and no target twice (at {user_frames.user_line()})"
        )
    flat = [ordinal for pair in pairs for ordinal in pair]
    moved: torch.Tensor = torch.ops.torch_xla.collective_permute(
        tensor, flat, flatten_groups("collective_permute", groups)
    )
    return _kept_until_cut(moved)


@_sync_thread_replicas
@torch.no_grad()
def broadcast(tensors: Sequence[torch.Tensor], root: int, groups: Groups = None) -> list[torch.Tensor]:
    """New tensors with what the replica at position ``root`` of each group has."""
    check_tensors("collective_broadcast", tensors)
    if not 0 <= root < group_size(groups):
        raise ValueError(
            f"collective_broadcast: there is no replica {root} among {group_size(groups)} (at {user_frames.user_line()})"
        )
    flat = flatten_groups("collective_broadcast", groups)
    return _as_list(torch.ops.torch_xla.collective_broadcast(tensors, root, flat)) if tensors else []


@torch.no_grad()
def copy_into(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Sets each target to its value."""
    if targets:
        dispatcher.foreach_copy_(targets, values)
