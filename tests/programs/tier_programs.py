"""Jobs whose processes are hosts with a folder each: snapshots, copies on peers, and lost folders.

torchrun --nproc-per-node=4 ... tier_programs.py SCENARIO FOLDER
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, RankLocalState, _checksummed_storage

#: Divisible by 3 and by 4 processes.
ROWS = 12
LAST = 6  # the step of the last snapshot; the last remote checkpoint is that of step 4


class Position:
    """A loader's state: differs between the processes, and its structure changes."""

    def __init__(self, step: int) -> None:
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"rank": dist.get_rank(), **({} if self.step == 0 else {"iterator": {"step": self.step}})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["rank"] == dist.get_rank()
        self.step = state["iterator"]["step"]


def state_of(step: int) -> dict[str, Any]:
    """A sharded and a replicated tensor, a CPU tensor and numbers; distinct values at every step."""
    devices = xr.global_runtime_device_count()
    mesh = xs.Mesh(range(devices), (devices,), ("data",))
    sharded = torch.arange(2.0 * ROWS).reshape(ROWS, 2).add(100 * step).to("xla")
    xs.mark_sharding(sharded, mesh, ("data", None))
    replicated = torch.full((5,), float(step)).to("xla")
    return {"model": {"sharded": sharded, "replicated": replicated}, "cpu": torch.full((3,), step), "step": step}


def check(state: dict[str, Any], step: int) -> None:
    expected = state_of(step)
    for name, value in expected["model"].items():
        assert (state["model"][name] - value).abs().max().item() == 0, name
    assert torch.equal(state["cpu"], expected["cpu"]) and state["step"] == step


def manager_in(folder: Path, hosts: Path | None = None, **options: Any) -> CheckpointManager:
    host = (hosts or folder) / f"host{dist.get_rank()}"
    options = {"save_interval": 4, "local_save_interval": 2, "chkpt_on_preemption": False} | options
    return CheckpointManager(str(folder / "remote"), local_path=str(host), **options)


def train(manager: CheckpointManager, steps: range) -> None:
    for step in steps:
        manager.save_async(step, state_of(step))
    manager.join()


READS = ("Local", "Peer", "Remote")


def restored(manager: CheckpointManager, step: int | None = None) -> tuple[int | None, dict[str, int], list[str]]:
    """Restore into a new state, and check its values. Return the step, the number of reads by tier, and the log."""
    met.clear_all()
    state = state_of(0)
    with recorded_log() as lines:
        if step is None:
            step = manager.restore_latest(state)
        else:
            manager.restore(step, state)
    if step is not None:
        check(state, step)
    return step, {tier: met.counter_value(f"CheckpointReads{tier}") or 0 for tier in READS}, lines


@contextmanager
def recorded_log() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch_xla.checkpoint")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def lose_folders(folder: Path) -> None:
    """Restore after the loss of folders and files; each case has a copy of the folders of all hosts."""
    train(manager_in(folder), range(1, LAST + 1))
    rank = dist.get_rank()

    def case(name: str, lose: Callable[[Path], None]) -> tuple[int | None, dict[str, int], list[str]]:
        hosts = folder / name
        if rank == 0:
            for host in folder.glob("host*"):
                shutil.copytree(host, hosts / host.name)
            lose(hosts)
        dist.barrier()
        return restored(manager_in(folder, hosts))

    def step_folder(hosts: Path, host: int) -> Path:
        return next((hosts / f"host{host}").glob(f"*/*/{LAST}"))

    def corrupt(hosts: Path) -> None:
        file = step_folder(hosts, 1) / "__1_0.distcp"
        data = file.read_bytes()
        file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])

    def change_id(hosts: Path) -> None:  # saved again by a job that was killed on the other hosts
        for host in (1, 2):
            file = step_folder(hosts, host) / ".snapshot"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"id": "other", "time": 1e12}))

    assert manager_in(folder).all_steps() == [4, LAST]
    step, reads, log = case("complete", lambda hosts: None)
    assert (step, reads["Remote"]) == (LAST, 0) and reads["Local"] and "restored step 6 from the local" in log[0], log
    step, reads, log = case("one_lost", lambda hosts: shutil.rmtree(hosts / "host1"))
    assert (step, reads["Remote"]) == (LAST, 0) and bool(reads["Local"]) == (rank != 1), reads
    assert rank != 1 or (reads["Peer"] and "read 0 files" in log[0]), (reads, log)
    step, reads, log = case("corrupt", corrupt)
    assert (step, reads["Remote"]) == (LAST, 0), log
    for name, lose in {
        "two_lost": lambda hosts: [shutil.rmtree(hosts / f"host{host}") for host in (1, 2)],
        "half_written": lambda hosts: [(step_folder(hosts, host) / ".snapshot").unlink() for host in (1, 2)],
        "ids": change_id,
    }.items():
        step, reads, log = case(name, lose)
        assert step == 4 and reads["Remote"] and not reads["Local"] + reads["Peer"], (name, step, reads)
        assert len(log) == 1 and "restoring step 4 from" in log[0] and "__1_0.distcp" in log[0], log
    step, reads, log = case("all_lost", lambda hosts: shutil.rmtree(hosts))
    assert step == 4 and reads["Remote"] and "there is no local snapshot" in log[0], log
    assert restored(manager_in(folder), 4)[0] == 4
    with pytest.raises(ValueError, match=r"untracked step 5. Valid steps are: \[4, 6\]"):
        restored(manager_in(folder), 5)
    if rank == 0:
        shutil.rmtree(folder / "remote")
    dist.barrier()
    assert restored(manager_in(folder))[0] is None, "the snapshots of a run whose path was deleted are not its own"


def fill_disk(folder: Path) -> None:
    """One process cannot write its snapshots: all drop them, and one line is logged."""
    folder = folder / "full"
    rank, manager = dist.get_rank(), manager_in(folder, save_interval=100)
    train(manager, range(1, 3))
    met.clear_all()
    with recorded_log() as lines:
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        train(manager, range(3, 7))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert met.counter_value("CheckpointSnapshotFailures") == 2, lines
    written = [line for line in lines if "could not be written" in line]
    assert len(written) == (rank == 1) and all("File too large" in line for line in written), lines
    assert [path.name for path in (folder / f"host{rank}").glob("*/*/*")] == ["2"]
    train(manager, range(7, 9))
    assert manager.all_steps() == [8]


def save_and_kill(folder: Path) -> None:
    """A process is killed after it has written its file of the last snapshot."""
    write_data = _checksummed_storage._SnapshotWriter.write_data

    def killed(self: Any, plan: Any, planner: Any) -> Any:
        done = write_data(self, plan, planner)
        if Path(self.path).name == f".{LAST}.writing" and dist.get_rank() == 2:
            assert list(Path(self.path).glob("*.distcp"))
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    _checksummed_storage._SnapshotWriter.write_data = killed  # type: ignore[method-assign]
    manager = manager_in(folder, save_interval=100)
    train(manager, range(1, LAST + 1))


def restore_after_kill(folder: Path) -> None:
    """Also three processes restore the snapshot of four; one host is lost."""
    rank = dist.get_rank()
    step, reads, _ = restored(manager_in(folder, save_interval=100))
    assert (step, reads["Remote"]) == (LAST - 2, 0) and reads["Local"], (step, reads)
    assert [path.name for path in (folder / f"host{rank}").glob("*/*/*")] == [str(LAST - 2)]


def loader_states(folder: Path) -> None:
    manager = manager_in(folder / "loader")
    manager.save(4, {"x": torch.ones(2), "data": RankLocalState(Position(4))})
    position = Position(0)
    assert manager.restore_latest({"x": torch.zeros(2), "data": RankLocalState(position)}) == 4
    assert position.step == 4


SCENARIOS = {run.__name__: run for run in (lose_folders, fill_disk, save_and_kill, restore_after_kill, loader_states)}


if __name__ == "__main__":
    xr.use_spmd()
    dist.init_process_group("gloo", init_method="xla://")
    assert torch_xla.device()
    for name in sys.argv[1].split(","):
        SCENARIOS[name](Path(sys.argv[2]))
    print("done")
