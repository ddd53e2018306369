"""The command line of xla_dist, and the job that it specifies."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass

#: Default port of the rendezvous, formerly that of XRT's servers.
DEFAULT_PORT = 51011

_DESCRIPTION = """\
Runs a command on every machine of a TPU, on a list of hosts, or several times on this machine, as one job.

  {prog} --tpu=NAME -- python train.py
  {prog} --hosts=a,b,c --env=XLA_USE_BF16=1 -- python train.py
  {prog} --local=2 -- python train.py
  srun {prog} --cluster -- python train.py

Each worker's output is prefixed with its ordinal. When one worker fails, the others are terminated; the exit code is
the worst one. The command finds the job in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT:
each worker is one process of the job, or one process per device if it calls xla_multiprocessing.spawn.
With --cluster a scheduler has started the processes, and each execs the command, without monitoring or restarts.
"""

#: Variables that the launcher sets or replaces.
_PROTECTED = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "TORCH_XLA_DIST", "XLA_EMIT_STEPLOG", "XRT_TPU_CONFIG", "XRT_LOCAL_WORKER",
    "XRT_MESH_SERVICE_ADDRESS", "XRT_SHARD_WORLD_SIZE", "XRT_SHARD_ORDINAL", "TPU_NUM_DEVICES",
})  # fmt: skip

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9_.:@%\[\]][A-Za-z0-9_.:@%\[\]-]*")  # ssh cannot take these for an option

_TPU_WITH_VM = (
    "--vm and --tpu both name hosts to run on: a TPU is driven by its own hosts, and no longer by a separate VM. "
    "Omit --vm, or name single TPU VMs by --vm only"
)


@dataclass(frozen=True)
class Job:
    """What to run, and where. Exactly one of ``tpus``, ``hosts``, ``local`` and ``cluster`` is set."""

    command: tuple[str, ...]
    tpus: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    local: int = 0
    cluster: bool = False
    env: tuple[tuple[str, str], ...] = ()
    zone: str = ""
    conda_env: str = ""
    docker_image: str = ""
    docker_container: str = ""
    docker_run_flags: tuple[str, ...] = ()
    end_earlier_jobs: bool = False
    port: int | None = None
    max_restarts: int = 50
    dry_run: bool = False


def get_args_parser(prog: str = "python -m torch_xla.distributed.xla_dist") -> argparse.ArgumentParser:
    """Return the parser of the command line. Omitted options are None, False or empty.

    Args:
      prog: name of the command in messages.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_argument_group("where to run (one of these)")
    where.add_argument("--tpu", metavar="NAME", help="on every machine of this TPU")
    where.add_argument("--vm", metavar="NAME", action="append", help="on this single TPU VM; can be repeated")
    where.add_argument("--hosts", metavar="A,B,C", help="on these hosts, through ssh")
    where.add_argument("--local", metavar="N", type=int, help="N workers on this machine")
    where.add_argument(
        "--cluster", action="store_true", help="here, as the process that Slurm, Open MPI, Kubernetes or GKE reports"
    )
    where.add_argument("--zone", help="the zone of the TPU; default: the one of gcloud's configuration")
    how = parser.add_argument_group("how to run")
    how.add_argument(
        "--env",
        metavar="K=V",
        action="append",
        help="set a variable for the command; K alone: to its value in this environment; can be repeated",
    )
    how.add_argument("--conda-env", metavar="NAME", help="activate this conda environment first")
    how.add_argument("--docker-image", metavar="IMAGE", help="run in a new container of this image")
    how.add_argument("--docker-container", metavar="NAME", help="the container's name (default: a new one per worker)")
    how.add_argument("--docker-run-flag", metavar="FLAG", action="append", help="a flag for docker run; repeatable")
    how.add_argument("--tpuvm-server-port", metavar="PORT", type=int, help=f"rendezvous port ({DEFAULT_PORT})")
    how.add_argument(
        "--restart-tpuvm-pod-server",
        action="store_true",
        help="first terminate processes of your earlier jobs on the workers (there is no server any more)",
    )
    how.add_argument("--max-restarts", metavar="N", type=int, default=50, help="restart up to N times (default: 50)")
    how.add_argument("--dry-run", action="store_true", help="print the commands, start nothing")
    parser.add_argument("positional", metavar="command", nargs="+", help="the command and its arguments, after --")
    return parser


make_parser = get_args_parser  # the name that torch_xla.cli uses


def parse_job(options: argparse.Namespace) -> Job:
    """Return the job of parsed options. Raises ValueError with a message for the user if they are invalid."""
    if options.tpu and options.vm:
        raise ValueError(_TPU_WITH_VM)
    tpus = tuple([options.tpu] if options.tpu else options.vm or ())
    hosts = tuple(host for host in (options.hosts or "").split(",") if host)
    local = options.local or 0
    if local < 0 or (bool(tpus) + bool(hosts) + bool(local) + options.cluster) != 1:
        raise ValueError("specify where to run, by one of --tpu, --vm, --hosts, --local (N at least 1) and --cluster")
    for name in (*tpus, *hosts):
        if not _HOST.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid host name")
    if (options.docker_image or options.docker_container) and options.conda_env:
        raise ValueError("Docker Setup arguments and Conda Setup arguments are mutually exclusive.")
    if (options.docker_container or options.docker_run_flag) and not options.docker_image:
        raise ValueError("--docker-container and --docker-run-flag require --docker-image")
    if options.cluster and (options.conda_env or options.docker_image or options.restart_tpuvm_pod_server):
        raise ValueError("--cluster: the scheduler manages conda, docker and earlier jobs; omit these options")
    return Job(
        command=tuple(options.positional),
        tpus=tpus,
        hosts=hosts,
        local=local,
        cluster=options.cluster,
        env=tuple(_variable(text) for text in options.env or ()),
        zone=options.zone or "",
        conda_env=options.conda_env or "",
        docker_image=options.docker_image or "",
        docker_container=options.docker_container or "",
        docker_run_flags=tuple(part for flag in options.docker_run_flag or () for part in shlex.split(flag)),
        end_earlier_jobs=bool(options.restart_tpuvm_pod_server),
        port=options.tpuvm_server_port,
        max_restarts=options.max_restarts,
        dry_run=options.dry_run,
    )


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign and name in os.environ:
        sign, value = "=", os.environ[name]
    if not sign or not _NAME.fullmatch(name):
        raise ValueError(f"Environment variable to distribute ({text}) should follow the form: X=Y")
    if name in _PROTECTED:
        raise ValueError(
            f"{name} should not be in the training command provided as they will interfere with the values set for "
            "distributed training"
        )
    return name, value
