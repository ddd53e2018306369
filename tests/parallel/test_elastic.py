"""Elastic jobs: torchrun restarts them with the processes that are left, and with those that come back.

Each "host" is a torchrun with one process, and both are killed together. The rendezvous store is in the test's process.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.programs import elastic_program
from tests.support import fast_compile_flags, scripts
from torch_xla._engine.job import attempts, replicas
from torch_xla.distributed.elastic import GlobalBatchSampler

#: How long torchrun waits for more hosts, and for one that is gone. Shorter times restart the job more often than these
#: tests expect where other processes have the cores: a host that is late for a round starts the next one.
RENDEZVOUS = "is_host=0,last_call_timeout=8,keep_alive_interval=1,keep_alive_max_attempt=8"
#: What jax prints if it ends a process before torch_xla does: rank 0 hosts its coordinator.
JAX_ENDED = "coordination service"
#: Seconds after which a job that makes no step has failed.
LIMIT = 240


TORCHRUN = [*scripts.PYTHON, "-m", "torch.distributed.run", "--no-python"]
#: Its workers are forks of a process that has imported torch and jax.
FORKING = [sys.executable, "-m", "torch_xla.distributed.run"]


class Job:
    """A running elastic job of up to four hosts. Owned by one test; ``close`` ends what is left."""

    def __init__(self, folder: Path, launcher: Sequence[str], **environment: str) -> None:
        self.folder, self._launcher, self._environment = folder, launcher, environment
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._hosts: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0
        self._entries: list[dict[str, Any]] = []
        self._read = 0  # bytes of the log

    def start_host(self) -> None:
        name, self._started = f"host{self._started}", self._started + 1
        environment = os.environ | scripts.server_variables()
        environment |= {
            "AGENT": name,
            "PJRT_DEVICE": "CPU",
            "OMP_NUM_THREADS": "1",
            "PAUSE": "0.1",
            "PYTHONPATH": str(scripts.ROOT),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "TORCH_XLA_COMPILE_POLICY": "compile",
            "XLA_FLAGS": fast_compile_flags.FLAGS,
            "XLA_PERSISTENT_CACHE_PATH": str(self.folder / "programs"),
        }
        environment |= self._environment
        options = ["--nnodes=3:4", "--nproc_per_node=1", "--max-restarts=100", "--rdzv-backend=c10d"]
        options += [f"--rdzv-endpoint=127.0.0.1:{self._store.port}", f"--rdzv-conf={RENDEZVOUS}", "--rdzv-id=job"]
        command = [*self._launcher, *options, "--local-addr=127.0.0.1", *program(self._launcher), str(self.folder)]
        with (self.folder / f"{name}.out").open("wb") as file:
            self._hosts[name] = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def log(self) -> list[dict[str, Any]]:
        file = self.folder / "log"
        if file.exists():
            with file.open("rb") as opened:
                opened.seek(self._read)
                lines = opened.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            self._read += len(lines)
            self._entries += map(json.loads, lines.splitlines())
        return self._entries

    def output(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("*.out")))

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool], since: int = 0) -> list[dict[str, Any]]:
        """Return the entries of the log from ``since`` on, as soon as the condition holds for them."""
        deadline = time.monotonic() + LIMIT
        while not condition(self.log()[since:]):
            assert time.monotonic() < deadline, self.output()[-4000:]
            time.sleep(0.05)
        return self.log()[since:]

    def wait_for_steps(self, world: int, steps: int = 3, since: int = 0) -> list[dict[str, Any]]:
        return self.wait_for(lambda log: len({e["step"] for e in log if e["world"] == world}) >= steps, since)

    def kill_host(self, rank: int) -> int:
        """Kill a process and its torchrun with SIGKILL; return the length of the log before."""
        log = list(self.log())
        entry = next(e for e in reversed(log) if e["rank"] == rank and e["world"] == log[-1]["world"])
        agent = self._hosts.pop(entry["agent"])
        agent.kill()
        with suppress(ProcessLookupError):
            os.kill(entry["pid"], signal.SIGKILL)
        agent.wait()
        return len(log)

    def finish(self) -> None:
        (self.folder / "finish").touch()
        codes = [host.wait(timeout=LIMIT) for host in self._hosts.values()]
        assert codes == [0] * 4, self.output()[-4000:]

    def close(self) -> None:
        for host in self._hosts.values():
            if host.poll() is None:
                host.terminate()
                with suppress(subprocess.TimeoutExpired):
                    host.wait(timeout=40)
                host.kill()
                host.wait()


def program(launcher: Sequence[str]) -> list[str]:
    """Return the program of a worker, as the launcher takes it."""
    return [*(scripts.PYTHON if launcher is TORCHRUN else []), elastic_program.__file__]


@contextmanager
def running_job(folder: Path, launcher: Sequence[str], **environment: str) -> Iterator[Job]:
    job = Job(folder, launcher, **environment)
    try:
        for _ in range(4):
            job.start_host()
        job.wait_for_steps(world=4)
        yield job
    finally:
        job.close()


def shrink_and_grow(job: Job, rank: int, choice: random.Random) -> float:
    """Kill a host at a random moment, and start another when the job has continued.

    Returns the seconds from the kill to the next step.
    """
    time.sleep(choice.random())
    before = job.kill_host(rank)
    killed = time.time()
    entries = job.wait_for_steps(world=3, since=before)
    first = next(e for e in entries if e["world"] == 3)
    last = max(e["step"] for e in job.log()[:before])
    # One checkpoint may be pending when the process is killed.
    assert last - 2 * elastic_program.INTERVAL < first["step"] <= last + 2
    seen = len(job.log())
    job.start_host()
    job.wait_for_steps(world=4, since=seen)
    return float(first["time"]) - killed


def check_run(job: Job, killed: Sequence[int]) -> None:
    """Compare all losses with those of CPU torch; check the messages, and that only the first jobs compiled."""
    log = job.log()
    expected = elastic_program.expected_losses(max(e["step"] for e in log) + 1)
    for entry in log:
        assert entry["loss"] == pytest.approx(expected[entry["step"]], rel=1e-4), entry
    assert {e["step"] for e in log} == set(range(len(expected)))
    lost = [int(rank) for rank in re.findall(r"torch_xla: rank (\d) of 4 .*was lost: every rank ends", job.output())]
    assert sorted(filter(None, lost)) == sorted(filter(None, killed)), "one line for each"
    assert lost.count(0) <= killed.count(0) and (lost.count(0) == killed.count(0) or JAX_ENDED in job.output())
    compiled: dict[int, set[int]] = {}
    for entry in log:
        compiled.setdefault(entry["pid"], set()).add(entry["compiled"])
    pids = {world: list(dict.fromkeys(e["pid"] for e in log if e["world"] == world)) for world in (3, 4)}
    for world, found in pids.items():
        assert all(compiled[pid] == {0} for pid in found[world:]), "a restart compiles nothing that is cached"


@pytest.mark.sweep  # the next test does the same, with snapshots
def test_a_job_shrinks_and_grows(tmp_path: Path) -> None:
    with running_job(tmp_path, TORCHRUN) as job:
        shrink_and_grow(job, 2, random.Random(0))
        job.finish()
        check_run(job, [2])


def test_lost_hosts_are_restored_from_their_peers(tmp_path: Path) -> None:
    """Three processes continue from the snapshots of four, and a new host from those of the others.

    On a loaded machine torchelastic starts the job again more often, while hosts join.
    """
    with running_job(tmp_path, TORCHRUN, TIERS="1") as job:
        shrink_and_grow(job, 2, random.Random(1))
        job.finish()
        check_run(job, [2])
        log = job.log()
    reads = {entry["pid"]: entry["reads"] for entry in log}
    last = {entry["agent"]: entry["reads"] for entry in log if entry["step"] == log[-1]["step"]}
    joined = next(entry["reads"] for entry in log if entry["agent"] == "host4")
    assert len(reads) >= 4 + 3 + 4, job.output()[-8000:]
    assert not any(found["Remote"] for found in reads.values())
    assert joined["Peer"] and not joined["Local"]
    assert all(found["Local"] for host, found in last.items() if host != "host4"), last


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_a_job_loses_a_host_five_times(tmp_path: Path, seed: int) -> None:
    """Any rank, also rank 0."""
    choice = random.Random(seed)
    killed = [choice.randrange(4) for _ in range(5)]
    with running_job(tmp_path, FORKING, PYTHONDONTWRITEBYTECODE="") as job:  # installed packages have bytecode
        pauses = [shrink_and_grow(job, rank, choice) for rank in killed]
        job.finish()
        check_run(job, killed)
    print("seconds from kill to next step:", " ".join(f"{pause:.1f}" for pause in pauses))


@pytest.mark.parametrize(
    ("launcher", "rank"), [pytest.param(TORCHRUN, 0, marks=pytest.mark.sweep), (TORCHRUN, 1), (FORKING, 1)]
)
def test_a_killed_rank_ends_all(tmp_path: Path, launcher: list[str], rank: int) -> None:
    """With one line, and the launcher starts all again: its store has the keys of the first attempt."""
    environment = os.environ | scripts.server_variables()
    environment |= {"PJRT_DEVICE": "CPU", "PAUSE": "0.1", "TORCH_XLA_COMPILE_POLICY": "compile"}
    environment |= {"OMP_NUM_THREADS": "1", "XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "programs")}
    environment["XLA_FLAGS"] = fast_compile_flags.FLAGS
    environment["PYTHONPATH"] = str(scripts.ROOT)
    options = ["--standalone", "--nproc_per_node=2", "--max-restarts=2", *program(launcher), str(tmp_path)]
    process = subprocess.Popen([*launcher, *options], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        log = _wait_for_log(tmp_path, lambda log: len(log) >= 8)
        os.kill(next(e["pid"] for e in log if e["rank"] == rank), signal.SIGKILL)
        seen = {e["pid"] for e in log}
        _wait_for_log(tmp_path, lambda log: any(e["pid"] not in seen for e in log))
        (tmp_path / "finish").touch()
        _, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    lines = len(re.findall(rf"torch_xla: rank {rank} of 2 .*was lost: every rank ends", err))
    assert lines == 1 or (rank == 0 and lines == 0 and JAX_ENDED in err), err


def _wait_for_log(folder: Path, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    deadline, file = time.monotonic() + LIMIT, folder / "log"
    while True:
        log = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        if condition(log):
            return log
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_global_batch_does_not_depend_on_the_number_of_processes(shuffle: bool) -> None:
    def parts(world: int, first: int, count: int) -> list[list[int]]:
        samplers = [
            iter(GlobalBatchSampler(50, 12, first, shuffle, num_replicas=world, rank=rank)) for rank in range(world)
        ]
        return [[index for sampler in samplers for index in next(sampler)] for _ in range(count)]

    whole = parts(1, 0, 10)
    for world in (2, 3, 4, 12):
        assert parts(world, 0, 10) == whole
        assert parts(world, 5, 5) == whole[5:], "from the middle of an epoch"
    epoch = [index for batch in whole[:4] for index in batch]
    assert len(set(epoch)) == 48 and set(epoch) <= set(range(50))
    assert (whole[4] == whole[0]) != shuffle, "each epoch has its own order"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((50, 10, 0, True, 0, 4, 0), "batch_size=10 must be a multiple of the 4 processes"),
        ((50, 0, 0, True, 0, 4, 0), "batch_size=0 must be a multiple"),
        ((5, 8, 0, True, 0, 4, 0), "data_size=5 is below batch_size=8"),
        ((50, 8, 0, True, 0, 4, 4), r"rank=4 must be in \[0, 4\)"),
    ],
)
def test_invalid_batches(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GlobalBatchSampler(*arguments)


def test_a_missing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a ticket of a process that has ended is answered, but does not count as its rank."""
    monkeypatch.setattr(replicas, "process_count", lambda: 3)
    monkeypatch.setattr(replicas, "process_index", lambda: 0)
    store = dist.PrefixStore("torch_xla/attempts", dist.HashStore())
    store.add("tickets", 2)
    with pytest.raises(RuntimeError, match=r"rank 0 waited .* for rank 1, 2 of 3 to use its xla device"):
        attempts._serve_tickets(store, timedelta(seconds=0.1))
    assert store.check(["answer/1", "answer/2"])
    monkeypatch.setattr(replicas, "process_index", lambda: 1)
    with pytest.raises(RuntimeError, match=r"rank 1 waited .* for rank 0 of 3 to use its xla device"):
        attempts._request_attempt(store, timedelta(seconds=0.1))
    assert store.add("tickets", 0) == 3
