"""What a small train step costs the host: recorded, replayed, and with torch.compile(backend="openxla").

    python -m benchmarks.compiled_step

CPU time of the thread that calls, in ms: the least of several rounds, in turns, with torch_xla.sync() after each step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

import torch_xla
from benchmarks import report

WAYS = ("recorded", "replay=True", "torch.compile(model)", "torch.compile(train_step)")
STEPS = 30
Model = Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]]


def mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Four linear layers, and a batch."""
    layers = [
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers), torch.randn(16, 64), torch.randint(0, 10, (16,))


def transformer() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Four transformer blocks, and a batch."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(blocks, nn.Flatten(), nn.Linear(256, 10)), torch.randn(4, 8, 32), torch.randint(0, 10, (4,))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
}


def make_step(way: str, make_model: Model, optimizer_name: str) -> Callable[[], object]:
    """Return a function without arguments that runs one step."""
    torch.manual_seed(0)
    model, x, y = make_model()
    model, x, y = model.to("xla"), x.to("xla"), y.to("xla")
    optimizer = OPTIMIZERS[optimizer_name](model)
    call = torch.compile(model, backend="openxla") if way == "torch.compile(model)" else model

    def train_step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if way == "replay=True":
        return torch_xla.compile(train_step, replay=True)
    step = torch.compile(train_step, backend="openxla") if way == "torch.compile(train_step)" else train_step

    def run() -> None:
        step()
        torch_xla.sync()

    return run


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """ms of host time of a step, by name."""
    best: dict[str, float] = {}
    with report.no_garbage_collection():
        for step in steps.values():
            for _ in range(6):
                step()
        for _ in range(rounds):
            for name, step in steps.items():
                torch_xla.sync(wait=True)
                start = time.thread_time()
                for _ in range(STEPS):
                    step()
                best[name] = min((time.thread_time() - start) / STEPS * 1e3, best.get(name, float("inf")))
    return best


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 2 if parser.parse_args().quick else 8
    rows = []
    for make_model in (mlp, transformer):
        for optimizer in OPTIMIZERS:
            found = measure({way: make_step(way, make_model, optimizer) for way in WAYS}, rounds)
            rows.append([f"{make_model.__name__}, {optimizer}", *(f"{found[way]:.2f}" for way in WAYS)])
    print(report.setting() + "\n")
    print(report.table(["a step, host ms", *WAYS], rows))


if __name__ == "__main__":
    main()
