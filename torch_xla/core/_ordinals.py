"""Who this replica is, and what replicas tell each other on the host."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

import torch

from torch_xla._engine.job import rendezvous as _rendezvous
from torch_xla._engine.job import replicas


def xrt_world_size(defval: int = 1) -> int:
    """The number of replicas of the job; ``defval`` outside of one."""
    count = replicas.world_size()
    return count if count > 1 else defval


def get_ordinal(defval: int = 0) -> int:
    """This replica's ordinal among all, from 0; ``defval`` outside of a job."""
    return replicas.global_ordinal() if replicas.world_size() > 1 else defval


def get_local_ordinal(defval: int = 0) -> int:
    """This replica's ordinal among those of its machine, from 0; ``defval`` outside of a job."""
    return replicas.local_ordinal() if replicas.world_size() > 1 else defval


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this replica (with SPMD: this process) is the first: of its machine, or with ``local=False`` of all."""
    return replicas.host_group_rank(local) == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints on the first replica only: of all, or with ``local`` of each machine."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Waits until all replicas (or those named) have come to the rendezvous ``tag``; their payloads by ordinal.

    It is the host that waits: what was recorded stays recorded. Raises RuntimeError where some do not come within
    XLA_RENDEZVOUS_TIMEOUT seconds, naming them.
    """
    return _rendezvous.rendezvous(tag, payload, replicas)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Shares ``payload`` with all replicas, or those of ``ordinals``; what each gave, in order of ordinals."""
    return rendezvous(tag or "xla_rendezvous", payload, ordinals or ())


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """``reduce_fn`` of the list of every replica's ``data``, by ordinal, on every replica; tensors are on the CPU.

    The data is pickled, as torch.distributed.all_gather_object does it: only processes that are trusted may be able to
    reach the job's coordinator.
    """
    buffer = io.BytesIO()
    torch.save(data, buffer)
    every = rendezvous(tag, buffer.getvalue())
    # Made by this job's own processes.
    return reduce_fn([torch.load(io.BytesIO(one), map_location="cpu", weights_only=False) for one in every])


def do_on_ordinals(
    target: Callable[..., Any], data: tuple[Any, ...] | Any = (), ordinals: Iterable[int] | int = (0,)
) -> Any:
    """``target(*data)`` on the replicas of ``ordinals`` while the others wait; its result there, None elsewhere.

    Tensors of ``data`` arrive on the CPU.
    """
    chosen = {ordinals} if isinstance(ordinals, int) else set(ordinals)
    mine = replicas.host_group_rank() in chosen
    result = None
    if mine:
        buffer = io.BytesIO()
        torch.save(data if isinstance(data, tuple) else (data,), buffer)
        buffer.seek(0)
        result = target(*torch.load(buffer, map_location="cpu", weights_only=False))
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result
