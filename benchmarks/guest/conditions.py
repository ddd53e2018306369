"""The machines of :mod:`benchmarks.guest`: the number of training processes, their cores and quota, and other load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # µs


@dataclass(frozen=True)
class Condition:
    """What surrounds a training process.

    Args:
        name: its name in the tables.
        replicas: processes that train the same model in parallel; each is measured.
        quota: CPUs that the cgroup of each process may use, if limited.
        busy: processes beside that only compute.
        cores: number of cores that the processes may run on; 0 for all.
        pause: seconds of sleep after each loss that is read.
    """

    name: str
    replicas: int = 1
    quota: float = 0.0
    busy: int = 0
    cores: int = 0
    pause: float = 0.0


CONDITIONS = (
    Condition("quiet"),
    Condition("two processes", replicas=2),
    Condition("quota of one CPU", quota=1.0),
    Condition("busy process beside", busy=1),
    Condition("one core", cores=1),
    Condition("four replicas", replicas=4),
    Condition("pause of 50 ms", pause=0.05),
)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute without end, each on any core."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def limited_cgroup(name: str, cpus: float) -> Iterator[Path]:
    """A cgroup (version 1 or 2) whose processes use at most ``cpus`` CPUs together; its file that takes process ids.

    Raises:
        PermissionError: if this user can't create cgroups.
    """
    controller = CGROUPS / "cpu"
    is_version_1 = (controller / "cpu.cfs_quota_us").exists()
    folder = (controller if is_version_1 else CGROUPS) / f"guest-{os.getpid()}-{name}"
    folder.mkdir()
    try:
        if is_version_1:
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD)))
        else:
            (folder / "cpu.max").write_text(f"{int(cpus * PERIOD)} {PERIOD}")
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


@dataclass
class Contestant:
    """The replicas of one setting in one condition. It owns their processes until :meth:`end`."""

    job: str
    device: str
    condition: Condition
    variables: dict[str, str] = field(default_factory=dict)
    cgroup: Path | None = None

    def __post_init__(self) -> None:
        self._processes = [self._start() for _ in range(self.condition.replicas)]
        try:
            for process in self._processes:
                self._receive(process)
        except BaseException:
            self.end()
            raise

    def _start(self) -> subprocess.Popen[str]:
        allowed = sorted(os.sched_getaffinity(0))
        cores = allowed[: self.condition.cores] if self.condition.cores else allowed
        # A shell enters the cgroup before Python starts, so that each count of cores sees the quota.
        enter = f"echo $$ > {self.cgroup} && " if self.cgroup else ""
        command = f'{enter}exec taskset -c {",".join(map(str, cores))} "$0" -m benchmarks.guest.contestant "$1" "$2"'
        return subprocess.Popen(
            ["sh", "-c", command, sys.executable, self.job, self.device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | self.variables,
        )  # fmt: skip

    def _receive(self, process: subprocess.Popen[str]) -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.job} on {self.device}: its process ended with exit code {process.wait()}")
        return json.loads(line)

    def ask(self, command: str) -> list[Any]:
        """The answers of all replicas, which work at the same time."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(command + "\n")
            process.stdin.flush()
        return [self._receive(process) for process in self._processes]

    def end(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.communicate()
