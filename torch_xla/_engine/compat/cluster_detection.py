"""Clusters that jax recognizes by what their schedulers tell each process: Slurm, Open MPI, Kubernetes, Cloud TPU."""

from __future__ import annotations

from dataclasses import dataclass

from torch_xla._engine.compat.private_api import PrivateApi

_TYPES = PrivateApi(
    "jax._src.clusters",
    "ClusterEnv._cluster_types",
    "xla_dist --cluster asks them which process of how many this one is, and where they meet",
    "xla_dist --cluster raises, and says why; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself",
)


@dataclass(frozen=True)
class ClusterInfo:
    """What a scheduler has told this process: who it is among how many, and where they meet."""

    cluster: str
    host: str
    port: int
    count: int
    index: int
    local_index: int | None  # among those of this machine, where the scheduler says it


def detect_cluster(port: int | None, timeout: int) -> ClusterInfo | None:
    """This process's place in its cluster, None where none is recognized.

    ``port``: where they meet, if not where jax would. ``timeout``: seconds for which the first one's name is looked up.
    Raises MissingError, and what jax raises where a cluster is there and does not say enough.
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
