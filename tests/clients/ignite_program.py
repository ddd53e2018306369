"""Trains and evaluates with ignite on several xla devices, and tells what came of it.

python -m tests.clients.ignite_program DEVICES
"""

from __future__ import annotations

import sys

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.clients import checks

BATCH, EPOCHS, RATE = 8, 2, 0.1  # a batch of all devices together


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def data() -> TensorDataset:
    torch.manual_seed(1)
    x = torch.randn(32, 8)
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(index: int) -> None:
    model, criterion = network().to(idist.device()), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    # Stride by the world size, so that one batch over all ranks has consecutive rows.
    mine = torch.utils.data.Subset(data(), range(idist.get_rank(), len(data()), idist.get_world_size()))
    loader = DataLoader(mine, batch_size=BATCH // idist.get_world_size())
    losses: list[float] = []
    trainer = create_supervised_trainer(model, optimizer, criterion, device=idist.device())
    keep = lambda run: losses.append(idist.all_reduce(run.state.output) / idist.get_world_size())
    trainer.add_event_handler(Events.ITERATION_COMPLETED, keep)
    trainer.run(loader, max_epochs=EPOCHS)
    wanted = {"accuracy": Accuracy(), "loss": Loss(criterion)}  # on the CPU: ignite rejects xla devices there
    evaluator = create_supervised_evaluator(model, metrics=wanted, device=idist.device())
    evaluator.run(loader)
    ranks = idist.all_gather(torch.tensor([float(idist.get_rank())], device=idist.device())).tolist()
    checks.assert_lives_on_xla(model)
    checks.assert_nothing_on_the_cpu()
    if idist.get_rank() == 0:
        devices = sorted({p.device.type for p in model.parameters()})
        told = {"losses": losses, "ranks": ranks, "devices": devices, "metrics": dict(evaluator.state.metrics)}
        print(checks.tell(told), flush=True)


def main() -> None:
    with idist.Parallel(backend="xla-tpu", nproc_per_node=int(sys.argv[1])) as parallel:
        parallel.run(train)


if __name__ == "__main__":
    main()
