"""One process of a multi-host job: trains with the others and writes its weights to a file.

    multi_host_program.py FOLDER [PROCESSES]      started by torchrun, or by xla_dist with so many processes to spawn

``check_weights`` is the other half, for the test that started them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla.distributed import xla_backend

STEPS, EACH = 4, 3


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def _batches(world: int) -> torch.Tensor:
    """[STEPS, world, EACH, 5]"""
    return torch.randn(STEPS, world, EACH, 5, generator=torch.Generator().manual_seed(world))


def _train(model: nn.Module, batches: torch.Tensor, averaging: bool) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model(batch.to(next(model.parameters()).device)).square().mean().backward()
        if averaging:
            xm.optimizer_step(optimizer, barrier=True)
        else:
            optimizer.step()
    if next(model.parameters()).is_xla:
        torch_xla.sync()  # else each read compiles a program
    return [parameter.detach().cpu() for parameter in model.parameters()]


def work(index: int, folder: Path) -> None:
    """Train with xm.optimizer_step, then with DistributedDataParallel."""
    world, rank = xr.world_size(), xr.global_ordinal()
    assert index == rank
    mine = _batches(world)[:, rank]
    stepped = _train(_model().to("xla"), mine, averaging=True)
    assert xla_backend.ProcessGroupXla is not None
    dist.init_process_group("xla", init_method="xla://")
    parallel = _train(nn.parallel.DistributedDataParallel(_model().to("xla")), mine, averaging=False)
    torch.save({"place": (world, xr.local_ordinal(), xr.host_index()), "both": (stepped, parallel)}, folder / f"{rank}")
    dist.destroy_process_group()


def check_weights(folder: Path, world: int) -> list[tuple[int, int, int]]:
    """Assert that all ranks have equal weights, and those of one process with the joined batches, both times.

    Returns (world size, local ordinal, host) as each rank saw them.
    """
    expected = _train(_model(), _batches(world).flatten(1, 2), averaging=False)
    found = [torch.load(folder / f"{rank}") for rank in range(world)]
    for result in found:
        for weights, first in zip(result["both"], found[0]["both"], strict=True):
            assert all(map(torch.equal, weights, first))
            torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)
    return [result["place"] for result in found]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        xmp.spawn(work, args=(Path(sys.argv[1]),), nprocs=int(sys.argv[2]), start_method="fork")
    else:
        work(xr.global_ordinal(), Path(sys.argv[1]))
