"""A training loop for `accelerate launch` and notebook_launcher; its main process prints one line of JSON."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.clients import checks

BATCH = 8  # of all processes together


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def data() -> TensorDataset:
    return TensorDataset(torch.linspace(-1, 1, 64).reshape(16, 4), torch.arange(16) % 2)


def main() -> None:
    accelerator = Accelerator()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(data(), batch_size=BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for x, y in loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    evaluated = sum(len(accelerator.gather_for_metrics(y)) for _, y in loader)
    gathered = accelerator.gather(torch.tensor([accelerator.process_index], device=accelerator.device)).tolist()
    weight = accelerator.unwrap_model(model).weight.detach().cpu().flatten().tolist()
    results = {"processes": accelerator.num_processes, "device": str(accelerator.device), "gathered": gathered}
    checks.assert_lives_on_xla(model)
    checks.assert_nothing_on_the_cpu()
    accelerator.print(checks.tell(results | {"weight": weight, "evaluated": evaluated}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        notebook_launcher(main, num_processes=int(sys.argv[1]))
    else:
        main()
