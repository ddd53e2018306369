"""Find the rank of a process that a cluster scheduler has started, and exec the command with torchrun's variables."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat import cluster_detection
from torch_xla.distributed.launcher import remote_scripts
from torch_xla.distributed.launcher.options import Job
from torch_xla.distributed.launcher.workers import LaunchError

_NONE = (
    "--cluster: no scheduler has started this process. Supported are Slurm (srun), Open MPI (mpirun), Kubernetes (an "
    "Indexed Job, with the package kubernetes installed), and Cloud TPU; otherwise set RANK, WORLD_SIZE, MASTER_ADDR "
    "and MASTER_PORT"
)


def exec_job(job: Job) -> int:
    """Exec the job's command with the variables of its rendezvous; with dry_run print it.

    Raises LaunchError if there is no cluster, or the command is not found.
    """
    found = torchrun_env(os.environ, job.port)
    if job.dry_run:
        words = (f"{name}={value}" for name, value in (found | dict(job.env)).items())
        print(shlex.join(["env", *words, *job.command]))
        return 0
    try:
        os.execvpe(job.command[0], job.command, os.environ | found | dict(job.env))
    except OSError as error:
        raise LaunchError(f"{job.command[0]}: {error.strerror}") from error


def torchrun_env(environment: Mapping[str, str], port: int | None = None) -> dict[str, str]:
    """Return the variables that torchrun would set, from the scheduler that started this process. Raises LaunchError.

    If a host has one process of the job, that process may spawn others: one process per device.
    """
    try:
        place = cluster_detection.detect_cluster(port, settings.TORCH_XLA_RENDEZVOUS_TIMEOUT)
    except (KeyError, RuntimeError, ValueError) as error:
        raise LaunchError(f"--cluster: {error}") from error
    if place is None:
        raise LaunchError(_NONE)
    if place.index >= place.count:
        raise LaunchError(f"--cluster: {place.cluster} reports process index {place.index} of {place.count} processes")
    local = local_process_count(environment)
    found = {
        "RANK": place.index,
        "WORLD_SIZE": place.count,
        "LOCAL_RANK": place.local_index or 0,
        "LOCAL_WORLD_SIZE": local,
        "MASTER_ADDR": place.host,
        "MASTER_PORT": place.port,
    }
    mark = {remote_scripts.MARK: f"{place.cluster}-{place.host}-{place.port}"} if local == 1 else {}
    return {name: str(value) for name, value in found.items()} | mark


def local_process_count(environment: Mapping[str, str]) -> int:
    """Return the number of the job's processes on this host; 1 if the scheduler does not report it."""
    if told := environment.get("OMPI_COMM_WORLD_LOCAL_SIZE"):
        return int(told)
    # For all hosts in order: "2(x3),1" means 2, 2, 2, 1.
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    counts = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks) for _ in range(int(times or 1))]
    node = int(environment.get("SLURM_NODEID", 0))
    return counts[node] if node < len(counts) else 1
