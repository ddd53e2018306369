"""One process of a job that a scheduler has started: finds its place, and becomes the command."""

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
    "--cluster: no scheduler has started this process. Known are Slurm (srun), Open MPI (mpirun), Kubernetes (an "
    "Indexed Job, with the package kubernetes installed), and Cloud TPU; elsewhere set RANK, WORLD_SIZE, MASTER_ADDR "
    "and MASTER_PORT"
)


def exec_job(job: Job) -> int:
    """Becomes the job's command, with the variables by which its processes find each other; with dry_run prints it.

    Raises LaunchError where there is no cluster, or no such command.
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
    """What torchrun would set, as the scheduler that started this process has it. Raises LaunchError.

    Where a machine has one process of the job, that one may spawn others: a process for each device.
    """
    try:
        place = cluster_detection.detect_cluster(port, settings.XLA_RENDEZVOUS_TIMEOUT)
    except (KeyError, RuntimeError, ValueError) as error:
        raise LaunchError(f"--cluster: {error}") from error
    if place is None:
        raise LaunchError(_NONE)
    if place.index >= place.count:
        raise LaunchError(f"--cluster: {place.cluster} calls this process {place.index} of {place.count}")
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
    """How many processes of the job this machine has; 1 where the scheduler does not say."""
    if told := environment.get("OMPI_COMM_WORLD_LOCAL_SIZE"):
        return int(told)
    # Of all machines in turn: "2(x3),1" is 2, 2, 2, 1.
    tasks = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    counts = [int(count) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks) for _ in range(int(times or 1))]
    node = int(environment.get("SLURM_NODEID", 0))
    return counts[node] if node < len(counts) else 1
