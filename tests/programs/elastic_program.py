"""One process of an elastic job: trains with sharded parameters, and appends each step to a log. See test_elastic.py.

    elastic_program.py FOLDER

Ends two steps after the file FOLDER/finish appears; FOLDER/last has the number of the last step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

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
    state = {"model": model, "optimizer": optimizer}
    if os.environ.get("TIERS"):
        manager = CheckpointManager(
            str(folder / "checkpoints"),
            1000,
            local_path=str(folder / os.environ["AGENT"]),
            local_save_interval=INTERVAL,
        )
    else:
        manager = CheckpointManager(str(folder / "checkpoints"), save_interval=INTERVAL, max_to_keep=3)
    restored = manager.restore_latest(state)
    first = 0 if restored is None else restored + 1
    reads = {tier: met.counter_value(f"CheckpointReads{tier}") or 0 for tier in ("Local", "Peer", "Remote")}
    data = dataset()
    loader = torch.utils.data.DataLoader(data, batch_sampler=GlobalBatchSampler(len(data), BATCH, first_step=first))
    sharding = xs.ShardingSpec(mesh, ("data", None), minibatch=True)
    for step, (x, y) in enumerate(MpDeviceLoader(loader, torch_xla.device(), input_sharding=sharding), first):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        compiled = met.counter_value("JobProgramsCompiled") or 0
        _log(folder, step=step, loss=loss.item(), world=world, rank=xr.process_index(), compiled=compiled, reads=reads)
        manager.save_async(step, state)
        if manager.reached_preemption(step):
            manager.join()
            sys.exit(1)  # torchelastic takes a process that exits with 0 for a finished one
        if _is_last(folder, step, xr.process_index()):
            break
        time.sleep(float(os.environ.get("PAUSE", "0")))
    manager.join()


def _is_last(folder: Path, step: int, rank: int) -> bool:
    """Whether the job ends after this step, on all ranks.

    Rank 0 chooses the last step, two ahead: no rank finishes the next step, a collective, before rank 0 has chosen. A
    rank that ended earlier than another would leave it in a collective.
    """
    last = folder / "last"
    if rank == 0 and (folder / "finish").exists() and not last.exists():
        (folder / "chosen").write_text(str(step + 2))
        (folder / "chosen").rename(last)  # complete as soon as it is there
    return last.exists() and step >= int(last.read_text())


def _log(folder: Path, **values: Any) -> None:
    entry = values | {"pid": os.getpid(), "agent": os.environ.get("AGENT"), "time": time.time()}
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
