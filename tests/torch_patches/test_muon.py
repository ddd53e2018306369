"""torch.optim.Muon: values of the CPU, in one program, without CPU fallbacks and without reads of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import counts

muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon exists from torch 2.9 on")
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "plain momentum": {"nesterov": False, "momentum": 0.8, "weight_decay": 0.0},
    "adjusted like AdamW": {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
}
STEPS, RATE = 4, 0.02


def _network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(12, 24, bias=False), nn.Tanh(), nn.Linear(24, 8, bias=False)
    return nn.Sequential(*layers).to(dtype)


def _train(model: nn.Module, optimizer: Any, steps: int) -> None:
    # Gradients of full rank: noise in the null space of others would be scaled to the size of the update.
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator).to(p)
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def _updates(model: nn.Module) -> list[torch.Tensor]:
    start = _network(torch.float64)
    pairs = zip(model.parameters(), start.parameters(), strict=True)
    return [p.detach().cpu().double() - s.detach() for p, s in pairs]


@muon
@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("name", OPTIONS)
def test_values_of_the_cpu(name: str) -> None:
    """Muon orthogonalizes in bfloat16: each element of an update is at most 1, with an error of some 2**-8."""
    there, here = _network(torch.float32), _network(torch.float32).to("xla")
    _train(there, torch.optim.Muon(there.parameters(), lr=RATE, **OPTIONS[name]), STEPS)
    with counts() as moved:
        _train(here, torch.optim.Muon(here.parameters(), lr=RATE, **OPTIONS[name]), STEPS)
    assert not moved.fallbacks
    for got, expected in zip(_updates(here), _updates(there), strict=True):
        assert (got - expected).norm() <= 0.03 * expected.norm()


@muon
@pytest.mark.usefixtures("cold")
def test_steps_share_a_program_and_read_nothing() -> None:
    model = _network(torch.float32).to("xla")
    optimizer = torch.optim.Muon(model.parameters(), lr=RATE)
    _train(model, optimizer, 2)  # the first step has no momentum yet
    with counts() as moved:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5  # a number of the program
        _train(model, optimizer, 3)
    assert moved.compilations == 0 and not moved.fallbacks
    assert not moved["aten::_local_scalar_dense"]
