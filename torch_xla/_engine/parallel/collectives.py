"""Record collectives: check their arguments and call the operators of ``collective_ops``.

A collective must be in the graph of every replica, even on a replica that drops its result. So one result of each
collective is retained until the graph is flushed (``release_pending``). Replicas may also read different values in the
middle of a step: a replica that has read a result has run its collective, so the other replicas run that collective
separately before what they read later (``pending_results_before``).

    replica 0                      replica 1
    a = all_reduce(x)              a = all_reduce(x)
    b = all_reduce(y)              b = all_reduce(y)
    a.item()   runs [a]            b.item()   runs [a], then [b]
    b.item()   runs [b]
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

_retained: defaultdict[int, list[torch.Tensor]] = defaultdict(list)

P = ParamSpec("P")
R = TypeVar("R", torch.Tensor, list[torch.Tensor])

#: Number of retained results at which computed ones are released, for loops that read values and never flush.
_MAX_RETAINED = 64

#: Graph key -> number of collectives.
_counts: LruCache[int] = LruCache()

REDUCTIONS = ("sum", "mul", "min", "max", "and", "or")

Groups = Sequence[Sequence[int]] | None


def flatten_groups(op: str, groups: Groups) -> list[int]:
    """Return the groups as one list of ordinals with -1 between groups; empty for one group of all replicas.

    Raises:
      ValueError: the groups differ in size, or do not contain each replica of the job exactly once.
    """
    if not groups:
        return []
    if isinstance(groups, PartialGroup):
        return list(groups[0])
    all_replicas = list(range(replicas.world_size()))
    named = sorted(ordinal for group in groups for ordinal in group)
    sizes = {len(group) for group in groups}
    if named != all_replicas or len(sizes) > 1:
        raise ValueError(
            f"{op}: groups={[list(group) for group in groups]} must have equal sizes and contain each of "
            f"the {len(all_replicas)} replicas once (at {user_frames.user_line()})"
        )
    if len(groups) == 1 and list(groups[0]) == all_replicas:
        return []
    return [number for group in groups for number in (-1, *group)][1:]


def group_size(groups: Groups) -> int:
    """Return the number of replicas in a group."""
    return len(groups[0]) if groups else replicas.world_size()


class PartialGroup(list[list[int]]):
    """One group of some replicas; the other replicas do not take part: ``PartialGroup([[2, 3]])``."""


def _retain_until_flush(result: torch.Tensor) -> torch.Tensor:
    retained = _retained[result.device.index]
    retained.append(result.detach())
    if len(retained) > _MAX_RETAINED:
        retained[:] = [tensor for tensor in retained if recorder.bindings().nodes_of([tensor])[0].pending]
    return result


def pending_results(device: int) -> list[torch.Tensor]:
    """Return one result of each collective recorded since the last flush."""
    return _retained[device]


def pending_results_before(device: int, nodes: Sequence[Any]) -> Sequence[Any]:
    """Return the collective results to compute first, one program each, before the pending ``nodes``.

    These collectives were recorded before a collective that the nodes depend on, but the nodes do not depend on them.
    The caller holds the execution lock.
    """
    retained = (recorder.bindings().nodes_of([tensor])[0] for tensor in _retained.get(device, ()))
    results = [node for node in retained if node.pending]
    needed = _count(device, nodes) if results else 0
    if needed == 0 or needed >= len(results):
        return ()
    independent = [_count(device, [*nodes, result]) > needed for result in results]
    last_needed = max((i for i, unrelated in enumerate(independent) if not unrelated), default=0)
    return [result for result, unrelated in zip(results[:last_needed], independent, strict=False) if unrelated]


def _count(device: int, roots: Sequence[Any]) -> int:
    """Return the number of collectives that the nodes depend on."""
    graph = recorder.bindings().collect(device, list(roots))
    found = _counts.get(graph.key)
    if found is None:
        found = sum(map(graph_spec.is_collective, graph_spec.describe_graph(graph).nodes))
        _counts.put(graph.key, found)
    return found


def release_pending(device: int) -> None:
    """Release the retained results of a device whose graph was flushed and run."""
    _retained.pop(device, None)


def _sync_thread_replicas(record: Callable[P, R]) -> Callable[P, R]:
    """Decorate a collective so that replicas that are threads run it immediately, as a separate program.

    Pending operations run first. All threads of a process launch one program, so the program must be the same for all
    of them; the graphs before and after it may differ.
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
            # The exception's frames would keep the op alive, and the next step would record it again.
            del result, tensors
            release_pending(device)
            raise error.with_traceback(None) from error.__cause__
        return result

    return run


def check_tensors(op: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError unless all tensors are on one xla device."""
    devices = {tensor.device for tensor in tensors}
    if any(device.type != "xla" for device in devices) or len(devices) > 1:
        shown = ", ".join(f"{t.dtype}{list(t.shape)} on {t.device}" for t in tensors[:4])
        raise ValueError(f"{op}: expected tensors on one xla device, got {shown} (at {user_frames.user_line()})")


def checked_dim(op: str, tensor: torch.Tensor, dim: int) -> int:
    """Return ``dim`` as a non-negative index. Raises IndexError if it is out of range."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(f"{op}: {tensor.dtype}{list(tensor.shape)} has no dim {dim} (at {user_frames.user_line()})")
    return dim % tensor.dim()


def _check_shares(op: str, tensor: torch.Tensor, dim: int, count: int) -> None:
    if tensor.shape[dim] % count:
        raise ValueError(
            f"{op}: dim {dim} of {tensor.dtype}{list(tensor.shape)} has {tensor.shape[dim]} elements, which "
            f"{count} replicas cannot share equally (at {user_frames.user_line()})"
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
    """Return each tensor reduced over the group by ``op`` (one of REDUCTIONS) and multiplied by ``scale``."""
    if op not in REDUCTIONS:
        raise ValueError(f"all_reduce: {op!r} is none of {', '.join(REDUCTIONS)} (at {user_frames.user_line()})")
    check_tensors("all_reduce", tensors)
    if op in ("and", "or", "min", "max"):
        _check_order(op, tensors)
    flat = flatten_groups("all_reduce", groups)
    return _as_list(torch.ops.torch_xla.all_reduce(tensors, op, scale, flat)) if tensors else []


def _as_list(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    _retain_until_flush(results[0])
    return list(results)


@_sync_thread_replicas
@torch.no_grad()
def all_gather(tensor: torch.Tensor, dim: int, groups: Groups = None) -> torch.Tensor:
    """Return the concatenation of the group's tensors along ``dim``."""
    check_tensors("all_gather", [tensor])
    dim = checked_dim("all_gather", tensor, dim)
    gathered: torch.Tensor = torch.ops.torch_xla.all_gather(
        tensor, dim, group_size(groups), flatten_groups("all_gather", groups)
    )
    return _retain_until_flush(gathered)


@_sync_thread_replicas
@torch.no_grad()
def reduce_scatter(op: str, tensor: torch.Tensor, dim: int, groups: Groups = None) -> torch.Tensor:
    """Return this replica's shard, along ``dim``, of the reduction over the group."""
    if op not in REDUCTIONS:
        raise ValueError(f"reduce_scatter: {op!r} is none of {', '.join(REDUCTIONS)} (at {user_frames.user_line()})")
    check_tensors("reduce_scatter", [tensor])
    dim = checked_dim("reduce_scatter", tensor, dim)
    _check_shares("reduce_scatter", tensor, dim, group_size(groups))
    shard: torch.Tensor = torch.ops.torch_xla.reduce_scatter(
        tensor, op, dim, group_size(groups), flatten_groups("reduce_scatter", groups)
    )
    return _retain_until_flush(shard)


@_sync_thread_replicas
@torch.no_grad()
def all_to_all(tensor: torch.Tensor, split: int, concat: int, groups: Groups = None) -> torch.Tensor:
    """Split along ``split``, send chunk i to replica i of the group, and concatenate what arrives along ``concat``."""
    check_tensors("all_to_all", [tensor])
    split, concat = checked_dim("all_to_all", tensor, split), checked_dim("all_to_all", tensor, concat)
    _check_shares("all_to_all", tensor, split, group_size(groups))
    joined: torch.Tensor = torch.ops.torch_xla.all_to_all(
        tensor, split, concat, group_size(groups), flatten_groups("all_to_all", groups)
    )
    return _retain_until_flush(joined)


@_sync_thread_replicas
@torch.no_grad()
def ragged_all_to_all(
    tensor: torch.Tensor, output: torch.Tensor, sizes: Sequence[torch.Tensor], groups: Groups = None
) -> torch.Tensor:
    """Send rows of ``tensor``; ``sizes`` are the input offsets, sizes to send, output offsets and sizes to receive."""
    what = "ragged_all_to_all"
    check_tensors(what, [tensor, output, *sizes])
    received: torch.Tensor = torch.ops.torch_xla.ragged_all_to_all(tensor, output, *sizes, flatten_groups(what, groups))
    return _retain_until_flush(received)


@_sync_thread_replicas
@torch.no_grad()
def collective_permute(tensor: torch.Tensor, pairs: Sequence[Sequence[int]], groups: Groups = None) -> torch.Tensor:
    """Return the tensor of this replica's source in ``pairs`` of (source, target); zeros if it has no source."""
    check_tensors("collective_permute", [tensor])
    world = replicas.world_size()
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    outside = any(not 0 <= ordinal < world for ordinal in sources + targets)
    if outside or len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ValueError(
            f"collective_permute: pairs={[list(pair) for pair in pairs]} must be (source, target) ordinals of {world} "
            f"replicas, each source and each target at most once (at {user_frames.user_line()})"
        )
    flat = [ordinal for pair in pairs for ordinal in pair]
    moved: torch.Tensor = torch.ops.torch_xla.collective_permute(
        tensor, flat, flatten_groups("collective_permute", groups)
    )
    return _retain_until_flush(moved)


@_sync_thread_replicas
@torch.no_grad()
def broadcast(tensors: Sequence[torch.Tensor], root: int, groups: Groups = None) -> list[torch.Tensor]:
    """Return the tensors of the replica at position ``root`` of each group."""
    check_tensors("collective_broadcast", tensors)
    if not 0 <= root < group_size(groups):
        raise ValueError(
            f"collective_broadcast: root={root} must be in [0, {group_size(groups)}) (at {user_frames.user_line()})"
        )
    flat = flatten_groups("collective_broadcast", groups)
    return _as_list(torch.ops.torch_xla.collective_broadcast(tensors, root, flat)) if tensors else []


@torch.no_grad()
def copy_into(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy each value into its target."""
    if targets:
        dispatcher.foreach_copy_(targets, values)
