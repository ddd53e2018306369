"""Collectives, rendezvous, gradient averaging and torch.distributed, with 1, 2 and 4 processes.

A process costs seconds to start, so each number of processes is started once and checks everything; see
replica_programs.py, and for torch's DTensor dtensor_programs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from tests.programs import replica_programs
from tests.support.helpers import run_script

SPAWN = """
import sys
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from tests.programs import replica_programs
xmp.spawn(replica_programs.everything, nprocs={world}, start_method="fork")
"""


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.sweep), 4])
def test_all_programs(world: int) -> None:
    # Ranks record different graphs, so explanations of recompilations are long.
    done = run_script(SPAWN.format(world=world), check=False, TORCH_XLA_EXPLAIN_RECOMPILATIONS="0")
    assert done.returncode == 0, done.stderr[-4000:]


DTENSORS = """
import sys
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from tests.programs import dtensor_programs
xmp.spawn(dtensor_programs.everything, args=({folder!r},), nprocs={world}, start_method="fork")
"""


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.sweep), 4])
def test_dtensor(world: int, tmp_path: Path) -> None:
    code = DTENSORS.format(world=world, folder=str(tmp_path / "checkpoint"))
    done = run_script(code, check=False, TORCH_XLA_EXPLAIN_RECOMPILATIONS="0")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.sweep
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_two_hundred_repetitions(world: int) -> None:
    torch_xla.sync()
    xmp.spawn(replica_programs.repeated, args=(200,), nprocs=world)


SENDS = """
import torch, torch.distributed as dist
import torch_xla, torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp

def worker(rank, is_received):
    dist.init_process_group("xla", init_method="xla://")
    other, received = 1 - rank, torch.zeros(3, device="xla")
    request = dist.isend(torch.full((3,), 7.0 + rank, device="xla"), other)
    torch_xla.sync()  # both ranks send first, so this cannot run a single send
    dist.recv(received, other)
    request.wait()
    assert received.tolist() == [7.0 + other] * 3
    if rank == 0:
        dist.isend(torch.full((3,), 5.0, device="xla"), other)
    elif is_received:
        dist.recv(received, other)
        assert received.tolist() == [5.0] * 3

xmp.spawn(worker, args=({is_received},), nprocs=2, start_method="fork")
"""


@pytest.mark.parametrize("is_received", [True, False])
def test_send_without_wait(is_received: bool) -> None:
    """It is sent at the latest at process exit, which reports a send without a receive."""
    done = run_script(SENDS.format(is_received=is_received), check=False)
    assert done.returncode == (0 if is_received else 1), done.stderr[-4000:]
    said = "torch_xla: a dist.isend without wait() failed at the end of the process:"
    assert (said in done.stderr) == (not is_received), done.stderr[-4000:]
