"""Startup of a job, simulated by processes of this machine: joining, and sharing the executable of a program.

    python -m benchmarks.scaling.startup --processes 8,16,32,64 --bytes 1000000

Each process joins the job as on a host of a cluster, and takes part in the exchange of an executable: one process
compiles (here: has bytes of that size), and the others fetch them through the job's key-value store, which rank 0
hosts. Nothing is computed. The CPU time of rank 0, less that of another rank, is the work of the coordinator; it is
what bounds a larger job: there each process has a separate host.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("join", "rendezvous", "fetch")
_PROGRAM = "0" * 64
#: Milliseconds to wait for the other processes in a phase.
_TIMEOUT = 600_000
#: Seconds between checks whether the other processes have ended.
_POLL = 0.05


@dataclass(frozen=True, slots=True)
class StartupRun:
    """The startup of a job.

    Attributes:
      processes, bytes: number of processes, and size of the executable.
      compiled, fetched: processes that compile it, and that fetch it.
      seconds: wall time of each phase: joining, a rendezvous of all processes, the exchange of the executable.
      cpu: CPU seconds of rank 0 in each phase, less the median of the other ranks.
    """

    processes: int
    bytes: int
    compiled: int
    fetched: int
    seconds: tuple[float, ...]
    cpu: tuple[float, ...]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _join_and_fetch(rank: int, size: int, start: float) -> dict[str, Any]:
    """Run in a forked process of the job."""
    from torch_xla._engine.job import coordination, key_value_exchange, program_exchange

    processes, phases = range(int(os.environ["WORLD_SIZE"])), [(start, _cpu_seconds())]

    def end_phase(name: str) -> None:
        coordination.coordination_client().wait_at_barrier(name, _TIMEOUT)
        phases.append((time.monotonic(), _cpu_seconds()))

    coordination.initialize()
    end_phase("join")
    key_value_exchange.all_gather_bytes("rendezvous", b"", processes)
    end_phase("rendezvous")
    exchange = program_exchange.Exchange(_PROGRAM, processes)
    turn = exchange.take_turn()
    compiles = isinstance(turn, program_exchange.CompileTurn)
    if isinstance(turn, program_exchange.CompileTurn):
        exchange.publish(turn, None, bytes(size))
    elif turn.data is None or len(turn.data) != size:
        raise RuntimeError(f"rank {rank} fetched {None if turn.data is None else len(turn.data)} bytes of {size}")
    end_phase("fetch")
    seconds, cpu = ([after[i] - before[i] for before, after in itertools.pairwise(phases)] for i in (0, 1))
    return {"seconds": seconds, "cpu": cpu, "compiles": compiles}


def _run_rank(rank: int, size: int, start: float, folder: Path) -> None:
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    code = 1
    try:
        file = folder / f"{rank}.part"
        file.write_text(json.dumps(_join_and_fetch(rank, size, start)))
        file.rename(folder / f"{rank}.json")
        # Rank 0 hosts the coordination service: jax terminates a process that sees the service end before it.
        while not (folder / ("others_ended" if rank == 0 else "reported")).exists():
            time.sleep(_POLL)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_job(processes: int, size: int) -> StartupRun:
    """Run a job of forked processes, and return its figures.

    Raises:
      RuntimeError: a process failed; its error is on stderr.
    """
    import torch_xla  # noqa: F401  # once, in the parent
    from torch_xla._engine.job import coordination, key_value_exchange, program_exchange  # noqa: F401

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes), "PJRT_DEVICE": "CPU",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="torch_xla-startup-") as name:
        folder, start = Path(name), time.monotonic()
        children = []
        for rank in range(processes):
            child = os.fork()
            if child == 0:
                _run_rank(rank, size, start, folder)
            children.append(child)
        _wait_for_reports(children, folder, processes)
        reports = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]
    return summarize(reports, size)


def _wait_for_reports(children: list[int], folder: Path, processes: int) -> None:
    """Wait until each rank has reported and ended, rank 0 (the first of ``children``) after the others."""
    running, failed = set(children), False
    while not failed and len(list(folder.glob("*.json"))) < processes:
        time.sleep(_POLL)
        ended, status = os.waitpid(-1, os.WNOHANG)
        failed = ended != 0 and status != 0
        running.discard(ended)
    if failed:
        for child in running:
            os.kill(child, 9)
    (folder / "reported").touch()
    for child in children[1:] + children[:1]:
        if child == children[0]:
            (folder / "others_ended").touch()
        if child in running:
            failed |= os.waitpid(child, 0)[1] != 0
    if failed:
        raise RuntimeError(f"a process of a job of {processes} failed")


def summarize(reports: Sequence[dict[str, Any]], size: int) -> StartupRun:
    """Return the figures of a job from those of its ranks."""
    compiled = sum(report["compiles"] for report in reports)
    seconds = tuple(max(values) for values in zip(*(report["seconds"] for report in reports), strict=True))
    others = zip(*(report["cpu"] for report in reports[1:]), strict=True)
    cpu = tuple(mine - statistics.median(values) for mine, values in zip(reports[0]["cpu"], others, strict=True))
    return StartupRun(len(reports), size, compiled, len(reports) - compiled, seconds, cpu)


def main() -> None:
    """Print the runs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--processes", type=lambda text: [int(word) for word in text.split(",")], default=[8, 16, 32, 64]
    )
    parser.add_argument("--bytes", type=int, default=1_000_000, help="size of the executable")
    options = parser.parse_args()
    runs = []
    for count in options.processes:
        runs.append(dataclasses.asdict(run_job(count, options.bytes)))
        print(runs[-1], file=sys.stderr, flush=True)
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
