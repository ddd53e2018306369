"""The workers of a job: which hosts, and how a shell script reaches each."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_xla.distributed.launcher.options import Job

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15")

#: Exit code of ssh (and gcloud, which uses it) for a failed connection, as opposed to a failed command.
CONNECTION_LOST = 255


class LaunchError(Exception):
    """A problem outside the command: a host, a name, or a missing tool."""


@dataclass(frozen=True)
class Worker:
    """One worker. ``prefix`` is a command that runs its last argument, a shell command line, on the worker's host."""

    ordinal: int
    name: str
    address: str
    prefix: tuple[str, ...]
    healthy: bool = True

    @property
    def is_local(self) -> bool:
        return not self.prefix

    def argv(self, script: str) -> list[str]:
        """Return the command that runs a bash script on the worker; the script may contain any characters."""
        if self.is_local:
            return ["bash", "-c", script]
        line = f"bash -c {shlex.quote(script)}"  # for the remote login shell
        if self.prefix[-1] == "--command":
            return [*self.prefix[:-1], f"--command={line}"]
        return [*self.prefix, line]


def resolve(job: Job) -> list[Worker]:
    """Return the workers by ordinal; queries gcloud for the workers of a TPU. Raises LaunchError."""
    if job.local:
        return [Worker(i, "localhost", "127.0.0.1", ()) for i in range(job.local)]
    if job.hosts:
        hosts = enumerate(job.hosts)
        return [Worker(i, host, host.rpartition("@")[2], (*_SSH, "--", host)) for i, host in hosts]
    workers: list[Worker] = []
    for name in job.tpus:
        workers += _tpu_workers(name, job.zone, len(workers))
    return workers


def _tpu_workers(name: str, zone: str, first: int) -> list[Worker]:
    zoned = (f"--zone={zone}",) if zone else ()
    tpu = _describe(["gcloud", "compute", "tpus", "tpu-vm", "describe", name, *zoned, "--format=json"])
    state, health = tpu.get("state", "READY"), tpu.get("health", "HEALTHY")
    endpoints = tpu.get("networkEndpoints", [])
    if state not in ("READY", "REPAIRING", "RESTARTING") or not endpoints:
        raise LaunchError(f"TPU {name} is in state {state} and has {len(endpoints)} hosts; it must be READY")
    ssh = ("gcloud", "compute", "tpus", "tpu-vm", "ssh", name, *zoned)
    return [
        Worker(
            first + i,
            f"{name} worker {i}",
            endpoint.get("ipAddress", ""),
            (*ssh, f"--worker={i}", "--command"),
            healthy=state == "READY" and not health.startswith("UNHEALTHY"),
        )
        for i, endpoint in enumerate(endpoints)
    ]


def _describe(command: Sequence[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError:
        raise LaunchError("gcloud is not installed: https://cloud.google.com/sdk/docs/install") from None
    if done.returncode != 0:
        raise LaunchError(f"{shlex.join(command)} failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LaunchError(f"{shlex.join(command)} did not print JSON:\n{done.stdout.strip()}") from None
    return found
