"""Cluster detection by jax, from the environment that schedulers set: Slurm, Open MPI, Kubernetes, Cloud TPU."""

from __future__ import annotations

from dataclasses import dataclass

from torch_xla._engine.compat.private_api import PrivateApi

_TYPES = PrivateApi(
    "jax._src.clusters",
    "ClusterEnv._cluster_types",
    "xla_dist --cluster: rank, number of processes and coordinator address of this process",
    "xla_dist --cluster raises: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT explicitly",
)


@dataclass(frozen=True)
class ClusterInfo:
    """Rank, number of processes and coordinator address, as set by the scheduler."""

    cluster: str
    host: str
    port: int
    count: int
    index: int
    local_index: int | None  # rank on this machine, if the scheduler sets it


def detect_cluster(port: int | None, timeout: int) -> ClusterInfo | None:
    """Return this process's rank in its cluster; None if no cluster is detected.

    Args:
      port: Port of the coordinator; None uses jax's default.
      timeout: Seconds to resolve the coordinator's host name.

    Raises MissingPrivateApiError, and what jax raises if a scheduler sets only part of the information.
    """
    for kind in _TYPES.resolve():
        if kind.opt_in_only_method or not kind.is_env_present():
            continue
        where = kind.get_coordinator_address(timeout_secs=timeout, override_coordinator_port=port and str(port))
        host, _, number = where.rpartition(":")
        name = kind.name or kind.__name__.removesuffix("Cluster").lower()
        return ClusterInfo(
            name, host, int(number), kind.get_process_count(), kind.get_process_id(), kind.get_local_process_id()
        )
    return None
