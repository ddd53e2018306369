"""Training with torch_xla.compile(replay=True) is that without replay, bit by bit: five models, four optimizers.

    python -m tests.fuzz.replays --steps 200      all pairs; prints a table

Each has dropout, clipping and a schedule. Losses, gradients, parameters, buffers, the state of the optimizer and the
next random numbers are compared. The sample that ``make test`` runs is in test_replays.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import torch_xla
import torch_xla.debug.metrics as met
from benchmarks import models

Batch = Callable[[], tuple[Tensor, Tensor]]

#: name -> (model, batch).
MODELS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "MLP": (partial(models.MLP, 3, 16), partial(models.vectors, 8, 16)),
    "LeNet": (models.LeNet, partial(models.images, 4, 1, 28)),
    "ResNet": (partial(models.ResNet, width=4, blocks=(1, 1, 1, 1)), partial(models.images, 4, 3, 32)),
    "GPT": (partial(models.GPT, 2, 16, 2, 32, 8, 0.1), partial(models.text, 2, 8, 32)),
    "ViT": (partial(models.ViT, 2, 16, 2, 8, 16), partial(models.images, 4, 3, 16)),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=1e-3),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "Adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}


def train(model_name: str, optimizer_name: str, steps: int, replay: bool) -> Iterator[list[Tensor]]:
    """Train; yield the loss of each step, and at the end all state."""
    torch.manual_seed(0)
    make, make_batch = MODELS[model_name]
    model = nn.Sequential(make(), nn.Dropout(0.1)).to("xla")
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps, cycle_momentum=False)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = models.loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    compiled = torch_xla.compile(step, replay=replay)
    torch_xla.manual_seed(3)
    for _ in range(steps):
        inputs, targets = make_batch()
        yield [compiled(inputs.to("xla"), targets.to("xla")).detach().cpu()]
        scheduler.step()
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    found = [*model.state_dict().values(), *gradients, *states, torch.rand(3, device="xla")]
    yield [value.detach().cpu() for value in found]


def compare(model: str, optimizer: str, steps: int) -> int:
    """Train both ways. Return how many steps were replayed. Raises AssertionError if any bit differs."""
    met.clear_counters()
    captured: list[Any] = list(train(model, optimizer, steps, True))
    replays = met.counter_value("ReplayedSteps") or 0
    for i, (found, expected) in enumerate(zip(captured, train(model, optimizer, steps, False), strict=True)):
        differing = [j for j, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)]
        assert not differing, f"{model}, {optimizer}: values {differing} differ after {min(i + 1, steps)} steps"
    return replays


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    print(f"| {options.steps} steps, of which replayed | {' | '.join(OPTIMIZERS)} |")
    print(f"| --- |{' --: |' * len(OPTIMIZERS)}")
    for model in MODELS:
        replays = [str(compare(model, optimizer, options.steps)) for optimizer in OPTIMIZERS]
        print(f"| {model} | {' | '.join(replays)} |", flush=True)


if __name__ == "__main__":
    main()
