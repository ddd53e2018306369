"""What a step costs the host when its program is known: an upload, one op, 160 parameters, and captured steps.

    python -m benchmarks.launching                       this checkout
    python -m benchmarks.launching --against FOLDER      and another one (a worktree of an older commit), in turns

CPU time of the thread that runs the script, so that a busy machine changes little; the least of several rounds. The
device's own work is next to nothing, but on the CPU it is in it: small programs run where they are called.

The captured steps are those of torch_xla.compile(replay=True) for 80 linear layers. "jax.jit of the SGD step" is the
same step written in jax, with the same results: parameters, gradients and loss. The other rows of jax.jit donate as
many arrays as the step has results, and compute next to nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROUNDS, STEPS = 5, 300
HERE = Path(__file__).resolve().parent.parent


def one_op() -> Callable[[], None]:
    import torch

    x = torch.ones(4, device="xla")

    def step() -> None:
        nonlocal x
        x = x + 1.5

    return step


def upload() -> Callable[[], None]:
    import torch

    batch = torch.ones(64, 256)

    def step() -> None:
        batch.to("xla")

    return step


def parameters() -> Callable[[], None]:
    import torch

    values = [torch.ones(4, device="xla") for _ in range(160)]
    gradients = [torch.ones(4, device="xla") for _ in range(160)]

    def step() -> None:
        for value, gradient in zip(values, gradients, strict=True):
            value.add_(gradient, alpha=-0.1)

    return step


def capture_training(optimizer: str) -> Callable[[], None]:
    import torch
    from torch import nn

    import torch_xla

    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(80))).to("xla")
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
    x = torch.ones(4, 4, device="xla")

    @torch_xla.compile(replay=True)
    def train(x: torch.Tensor) -> torch.Tensor:
        made.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        made.step()
        return loss

    return lambda: train(x)


def jax_arrays(count: int) -> Callable[[], None]:
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(lambda values: [value * 0.9 for value in values], donate_argnums=0)
    values = [jnp.ones(4) for _ in range(count)]

    def step() -> None:
        nonlocal values
        values = multiply(values)

    return step


def jax_step() -> Callable[[], None]:
    import jax
    import jax.numpy as jnp

    def loss_of(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for weight, bias in layers:
            x = x @ weight.T + bias
        return jnp.mean(jnp.square(x))

    def train(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> tuple[object, object, object]:
        loss, gradients = jax.value_and_grad(loss_of)(layers, x)
        return jax.tree.map(lambda value, gradient: value - 1e-3 * gradient, layers, gradients), gradients, loss

    compiled = jax.jit(train, donate_argnums=0)
    layers, x = [(jnp.ones((4, 4)) / 4, jnp.ones(4)) for _ in range(80)], jnp.ones((4, 4))
    results: object = None

    def step() -> None:
        nonlocal layers, results
        layers, *results = compiled(layers, x)

    return step


#: What is recorded before a sync() that is measured.
SYNCED: dict[str, Callable[[], Callable[[], None]]] = {"one op": one_op, "160 parameters": parameters}
#: What is measured itself.
CALLED: dict[str, Callable[[], Callable[[], None]]] = {
    "upload of 64 KB": upload,
    "captured, 160 parameters, SGD": partial(capture_training, "SGD"),
    "jax.jit of the SGD step": jax_step,
    "jax.jit of 320 donated arrays": partial(jax_arrays, 320),
    "captured, 160 parameters, AdamW": partial(capture_training, "AdamW"),
    "jax.jit of 640 donated arrays": partial(jax_arrays, 640),
}


def least_time(record: Callable[[], None], call: Callable[[], None]) -> float:
    """µs of CPU time that ``call`` takes after ``record``, each time from an idle device."""
    import torch_xla.core.xla_model as xm

    best = float("inf")
    for _ in range(20):
        record()
        call()
    for _ in range(ROUNDS):
        spent = 0.0
        for _ in range(STEPS):
            record()
            start = time.thread_time()
            call()
            spent += time.thread_time() - start
            xm.wait_device_ops()
        best = min(best, spent / STEPS)
    return best * 1e6


def measure() -> dict[str, float]:
    """µs that each case takes."""
    import torch_xla

    found = {name: least_time(make(), torch_xla.sync) for name, make in SYNCED.items()}
    return found | {name: least_time(lambda: None, make()) for name, make in CALLED.items()}


def measure_checkout(folder: Path) -> dict[str, float]:
    """What ``measure`` gives in a separate process, with the torch_xla of a checkout."""
    command = [sys.executable, __file__, "--json"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--json", action="store_true", help="this process's figures, for the command itself")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(measure()))
        return
    folders = [HERE] if options.against is None else [HERE, options.against.resolve()]
    best: list[dict[str, float]] = [{} for _ in folders]
    for _ in range(3):
        for found, folder in zip(best, folders, strict=True):
            for name, value in measure_checkout(folder).items():
                found[name] = min(value, found.get(name, value))
    print("| a known step, host µs | here |" + (" there | ratio |" if options.against else ""))
    print("| --- | --: |" + (" --: | --: |" if options.against else ""))
    for name, here in best[0].items():
        there = f" {best[1][name]:.1f} | {here / best[1][name]:.2f} |" if options.against else ""
        print(f"| {name} | {here:.1f} |{there}")


if __name__ == "__main__":
    main()
