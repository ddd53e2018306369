"""Ordinals of replicas, and host-side communication between replicas."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

import torch

from torch_xla._engine.job import rendezvous as _rendezvous
from torch_xla._engine.job import replicas


def xrt_world_size(defval: int = 1) -> int:
    """Return the number of replicas of the job; ``defval`` outside a job.

    Args:
      defval: result outside a job.
    """
    count = replicas.world_size()
    return count if count > 1 else defval


def get_ordinal(defval: int = 0) -> int:
    """Return this replica's ordinal among all replicas, from 0; ``defval`` outside a job.

    Args:
      defval: result outside a job.

    Examples:
      >>> import torch_xla.core.xla_model as xm
      >>> xm.get_ordinal()
      0
    """
    return replicas.global_ordinal() if replicas.world_size() > 1 else defval


def get_local_ordinal(defval: int = 0) -> int:
    """Return this replica's ordinal among the replicas of this host, from 0; ``defval`` outside a job.

    Args:
      defval: result outside a job.
    """
    return replicas.local_ordinal() if replicas.world_size() > 1 else defval


def is_master_ordinal(local: bool = True) -> bool:
    """Return whether this replica (SPMD: this process) is the first of its host, or with ``local=False`` of all.

    Args:
      local: compare with the replicas of this host instead of all.
    """
    return replicas.host_group_rank(local) == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Print on the first replica of the job only, or with ``local`` on the first replica of each host.

    Args:
      args: values, as for print.
      fd: output file; default: standard output.
      local: print on the first replica of each host.
      flush: flush the file.

    Examples:
      >>> import torch_xla.core.xla_model as xm
      >>> xm.master_print("epoch", 1)
      epoch 1
    """
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until all replicas reach the rendezvous ``tag``, and exchange payloads.

    The host waits; pending operations stay pending.

    Args:
      tag: name of the rendezvous, the same on all replicas.
      payload: bytes of this replica.
      replicas: ordinals of the replicas that take part; default: all.

    Returns:
      The payloads, in order of ordinals.

    Raises:
      RuntimeError: some replicas do not arrive within TORCH_XLA_RENDEZVOUS_TIMEOUT seconds; the message names them.

    Examples:
      One replica; with several, the list has the payload of each:

      >>> import torch_xla.core.xla_model as xm
      >>> xm.rendezvous("data_ready", payload=b"42 files")
      [b'42 files']
    """
    return _rendezvous.rendezvous(tag, payload, replicas)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Exchange ``payload`` between all replicas, or those of ``ordinals``; return the payloads in order of ordinals.

    Args:
      payload: bytes of this replica.
      ordinals: ordinals of the replicas that take part; default: all.
      tag: name of the rendezvous; default: ``xla_rendezvous``.

    Raises:
      RuntimeError: as for rendezvous.
    """
    return rendezvous(tag or "xla_rendezvous", payload, ordinals or ())


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """Gather ``data`` from all replicas, as a list by ordinal with tensors on the CPU, and return ``reduce_fn(list)``.

    The data is pickled, as by torch.distributed.all_gather_object: only trusted processes may have access to the
    job's coordinator.

    Args:
      tag: name of the rendezvous, the same on all replicas.
      data: any object that torch.save takes.
      reduce_fn: function of the list of all replicas' data, in order of ordinals.

    Returns:
      The result of ``reduce_fn``, on every replica.

    Raises:
      RuntimeError: some replicas do not arrive within TORCH_XLA_RENDEZVOUS_TIMEOUT seconds; the message names them.

    Examples:
      Average a metric over the replicas:

      >>> import torch_xla.core.xla_model as xm
      >>> xm.mesh_reduce("accuracy", 0.9, lambda values: sum(values) / len(values))
      0.9
    """
    buffer = io.BytesIO()
    torch.save(data, buffer)
    every = rendezvous(tag, buffer.getvalue())
    # Written by processes of this job.
    return reduce_fn([torch.load(io.BytesIO(one), map_location="cpu", weights_only=False) for one in every])


def do_on_ordinals(
    target: Callable[..., Any], data: tuple[Any, ...] | Any = (), ordinals: Iterable[int] | int = (0,)
) -> Any:
    """Call ``target(*data)`` on the replicas of ``ordinals`` while the others wait.

    Args:
      target: the function to call.
      data: its arguments, or its only argument; tensors are copied to the CPU.
      ordinals: ordinals of the replicas that call it.

    Returns:
      The result on these replicas, None on the others.
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
