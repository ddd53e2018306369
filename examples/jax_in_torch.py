"""Use a jax function inside a torch model: a network estimates the parameters of a curve that jax simulates.

python examples/jax_in_torch.py

The encoder is a torch module and the simulator a jax function (lax.scan). Gradients flow through both, and a training
step is one program. The network is not trained on the two parameters, spring and friction: it learns them because the
simulated curve must match its input.
"""

from __future__ import annotations

import argparse
import sys

import jax
import jax.numpy as jnp
import torch
from torch import nn

import torch_xla
from torch_xla.interop import jax_function

STEPS, SECONDS = 64, 0.15  # points of a curve, and the time between two points


def simulate(spring: jax.Array, friction: jax.Array) -> jax.Array:
    """Return the position of a weight on a spring over time, float[N, STEPS]; it starts at 1, at rest."""

    def move(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        place, speed = state
        speed = speed + SECONDS * (-spring * place - friction * speed)
        place = place + SECONDS * speed
        return (place, speed), place

    _, places = jax.lax.scan(move, (jnp.ones_like(spring), jnp.zeros_like(spring)), None, length=STEPS)
    return places.T


class Reader(nn.Module):
    """Estimates two parameters of a curve, and simulates the curve of these parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(STEPS, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
        self.simulate = jax_function(simulate)

    def forward(self, curves: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = self.encoder(curves).sigmoid()
        spring, friction = 0.5 + 3 * numbers[:, 0], numbers[:, 1]
        return self.simulate(spring, friction), torch.stack([spring, friction], 1)


def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return curves and their parameters."""
    numbers = torch.rand(count, 2, device="xla") * torch.tensor([3.0, 1.0], device="xla")
    numbers = numbers + torch.tensor([0.5, 0.0], device="xla")
    return jax_function(simulate)(numbers[:, 0], numbers[:, 1]), numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--target_error", type=float, default=float("inf"), help="exit 1 above this mean error")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Reader().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, options.steps + 1):
        curves, _ = examples(64)
        optimizer.zero_grad()
        loss = (model(curves)[0] - curves).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        if step % 100 == 0:
            print(f"step {step}: mean squared error of the curves {loss.item():.5f}", flush=True)
    with torch.no_grad():
        curves, numbers = examples(256)
        error = (model(curves)[1] - numbers).abs().mean(0).tolist()
    print(f"mean error of the spring {error[0]:.3f} (range 0.5 to 3.5), of the friction {error[1]:.3f} (range 0 to 1)")
    if max(error) > options.target_error:
        sys.exit(1)


if __name__ == "__main__":
    main()
