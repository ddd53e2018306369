"""Start of processes under upstream's internal names; see torch_xla.launch and xmp.spawn.

A process drives the devices that its launcher gives it, so nothing is initialized by rank here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.core.xla_model import broadcast_master_param
from torch_xla.distributed import xla_multiprocessing

__all__ = ["broadcast_master_param", "initialize_multiprocess", "initialize_singleprocess", "rendezvous",
           "run_multiprocess", "spawn", "spawn_threads"]  # fmt: skip


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Check that this process is ``local_rank`` of ``local_world_size``, as its launcher has set it up.

    Raises:
      RuntimeError: it is not. The launcher must assign devices before the process starts.
    """
    found = runtime.local_ordinal(), runtime.local_process_count()
    if found != (local_rank, local_world_size):
        raise RuntimeError(
            f"initialize_multiprocess: this is process {found[0]} of {found[1]} on this host, not {local_rank} "
            f"of {local_world_size}; start the processes with torch_xla.launch, xmp.spawn or torchrun, which assign "
            "devices"
        )


def initialize_singleprocess() -> None:
    """Do nothing: one process drives all devices of the host unless a launcher assigns them."""


def rendezvous(tag: str, payload: bytes, ordinals: Sequence[int] | None = None) -> list[bytes]:
    """Exchange payloads between replicas; see xm.rendezvous."""
    return xla_model.rendezvous(tag, payload, ordinals or ())


def spawn(
    fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple[Any, ...] = ()
) -> None:
    """Run ``fn(index, *args)`` in one process per device; see xmp.spawn."""
    xla_multiprocessing.spawn(fn, args, nprocs, start_method=start_method)


def run_multiprocess(fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, Any]:
    """Raise NotImplementedError: results of processes are not returned."""
    raise NotImplementedError(
        "run_multiprocess: results of processes are not returned; use torch_xla.launch(fn), and write results to files "
        "or exchange them with xm.mesh_reduce"
    )


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Raise NotImplementedError: a replica is a process."""
    raise NotImplementedError(
        "spawn_threads: a replica is a process; use torch_xla.launch(fn), or torch_xla.runtime.use_spmd() for one "
        "process that uses all devices"
    )
