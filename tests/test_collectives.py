"""Collectives, rendezvous, gradient averaging and torch.distributed, with 1, 2 and 4 processes.

A process costs seconds to start, so each number of processes is started once and checks everything; see
replica_programs.py, and for torch's DTensor dtensor_programs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import replica_programs
from helpers import run_script

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp

SPAWN = """
import sys
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
sys.path.insert(0, "tests")
import replica_programs
xmp.spawn(replica_programs.everything, nprocs={world}, start_method="fork")
"""


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.sweep), 4])
def test_everything(world: int) -> None:
    # Ranks take several ways: what is recorded again is explained at length.
    done = run_script(SPAWN.format(world=world), check=False, XLA_EXPLAIN_RECOMPILATIONS="0")
    assert done.returncode == 0, done.stderr[-4000:]


DTENSORS = """
import sys
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
sys.path.insert(0, "tests")
import dtensor_programs
xmp.spawn(dtensor_programs.everything, args=({folder!r},), nprocs={world}, start_method="fork")
"""


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.sweep), 4])
def test_dtensor(world: int, tmp_path: Path) -> None:
    code = DTENSORS.format(world=world, folder=str(tmp_path / "checkpoint"))
    done = run_script(code, check=False, XLA_EXPLAIN_RECOMPILATIONS="0")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.sweep
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_two_hundred_times(world: int) -> None:
    torch_xla.sync()
    xmp.spawn(replica_programs.repeated, args=(200,), nprocs=world)
