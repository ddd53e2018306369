"""One process of an elastic job: trains with sharded parameters, and appends each step to a log. See test_elastic.py.

    elastic_program.py FOLDER

Ends after the step in the file FOLDER/last. All processes read it: it must be some steps ahead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

INTERVAL, SAMPLES, BATCH = 2, 60, 12


def dataset() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(
        torch.randn(SAMPLES, 6, generator=generator), torch.randn(SAMPLES, 2, generator=generator)
    )


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(folder: Path) -> None:
    import torch.distributed as dist

    import torch_xla
    import torch_xla.debug.metrics as met
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
    from torch_xla.distributed.elastic import GlobalBatchSampler
    from torch_xla.distributed.parallel_loader import MpDeviceLoader
    from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer

    xr.use_spmd()
    dist.init_process_group("gloo", init_method="xla://")
    world = xr.process_count()
    mesh = xs.Mesh(range(world), (world,), ("data",))
    model, _ = build()
    model.to("xla")
    for parameter in (model[0].weight, model[0].bias):
        xs.mark_sharding(parameter, mesh, ("data",) + (None,) * (parameter.dim() - 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prime_optimizer(optimizer)
    manager = CheckpointManager(str(folder / "checkpoints"), save_interval=INTERVAL, max_to_keep=3)
    first = 0
    if saved := manager.all_steps():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        manager.restore(saved[-1], state)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = saved[-1] + 1
    data = dataset()
    loader = torch.utils.data.DataLoader(data, batch_sampler=GlobalBatchSampler(len(data), BATCH, first_step=first))
    sharding = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
    for step, (x, y) in enumerate(MpDeviceLoader(loader, torch_xla.device(), input_sharding=sharding), first):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        _log(folder, step, loss.item(), world, xr.process_index(), met.counter_value("JobProgramsCompiled") or 0)
        manager.save_async(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if manager.reached_preemption(step):
            manager.join()
            sys.exit(1)  # torchelastic takes a process that exits with 0 for a finished one
        if (folder / "last").exists() and step >= int((folder / "last").read_text()):
            break
        time.sleep(float(os.environ.get("PAUSE", "0")))
    manager.join()


def _log(folder: Path, step: int, loss: float, world: int, rank: int, compiled: int) -> None:
    entry = {
        "step": step, "loss": loss, "world": world, "rank": rank, "compiled": compiled, "pid": os.getpid(),
        "agent": os.environ.get("AGENT"), "time": time.time(),
    }  # fmt: skip
    with (folder / "log").open("a") as file:  # one write, so that lines of several processes do not mix
        file.write(json.dumps(entry) + "\n")


def expected_losses(steps: int) -> list[float]:
    """Return the loss of each step of eager CPU torch, without an interruption."""
    from torch_xla.distributed.elastic import GlobalBatchSampler

    model, optimizer = build()
    data, losses = dataset(), []
    batches = iter(GlobalBatchSampler(SAMPLES, BATCH, num_replicas=1, rank=0))
    for _ in range(steps):
        x, y = data[next(batches)]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    train(Path(sys.argv[1]))
