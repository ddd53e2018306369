"""Collectives, rendezvous, gradient averaging and torch.distributed, with 1, 2 and 4 processes.

A process costs seconds to start, so each number of processes is started once and checks everything; see
replica_programs.py.
"""

from __future__ import annotations

import pytest
import replica_programs

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp


@pytest.mark.parametrize("world", [1, 2, 4])
def test_everything(world: int) -> None:
    xmp.spawn(replica_programs.everything, nprocs=world)


@pytest.mark.sweep
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_two_hundred_times(world: int) -> None:
    torch_xla.sync()
    xmp.spawn(replica_programs.repeated, args=(200,), nprocs=world)
