"""fused=True: torch's fused optimizers on xla equal those on the CPU, with one operation per step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import counts

#: Optimizer and its options.
OPTIMIZERS = {
    "adam": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adam, amsgrad, maximize": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
    "adamw, amsgrad": (torch.optim.AdamW, {"amsgrad": True, "eps": 1e-6}),
    "sgd": (torch.optim.SGD, {}),
    "sgd, momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd, nesterov, maximize": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, rates: Callable[[int], float]) -> list[Any]:
    """Losses, then parameters and optimizer state on the CPU."""
    device = next(model.parameters()).device
    inputs = torch.linspace(-1, 1, 24).reshape(6, 4).to(device)
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rates(step)
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.detach().cpu())
    state = [value.cpu() for one in optimizer.state.values() for value in one.values() if value is not None]
    return [torch.stack(losses), *(p.detach().cpu() for p in model.parameters()), *state]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_on_the_cpu_and_one_program_for_all_rates(name: str) -> None:
    make, options = OPTIMIZERS[name]
    there, here = network(), network().to("xla")
    rates = lambda step: 0.05 / (step + 1)
    expected = trained(there, make(there.parameters(), fused=True, **options), 6, rates)
    optimizer = make(here.parameters(), fused=True, **options)
    with counts() as moved:
        trained(here, optimizer, 2, rates)  # SGD's first step makes its buffers
    here.load_state_dict(network().state_dict())
    optimizer = make(here.parameters(), fused=True, **options)
    with counts() as known:
        found = trained(here, optimizer, 6, rates)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-6)
    assert not moved.fallbacks | known.fallbacks
    assert known.compilations <= 2, "only what makes the optimizer's state"
    states = {v.device.type for one in optimizer.state.values() for v in one.values() if v is not None}
    assert states <= {"xla"}, "the count of steps is there, too"


@pytest.mark.parametrize("name", ["adamw", "sgd, momentum", "adagrad"])
def test_learning_rate_as_a_tensor(name: str) -> None:
    make, options = OPTIMIZERS[name]
    there, here = network(), network().to("xla")
    for model in (there, here):
        grads = torch.linspace(-1, 1, sum(p.numel() for p in model.parameters())).to(next(model.parameters()).device)
        for p, g in zip(model.parameters(), grads.split([p.numel() for p in model.parameters()]), strict=True):
            p.grad = g.reshape(p.shape)
        rate = torch.tensor(0.1, device=grads.device)
        make(model.parameters(), lr=rate, fused=True, **options).step()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("name", ["adam", "adamw, amsgrad", "sgd, momentum", "adagrad"])
@pytest.mark.parametrize("overflows", [False, True])
def test_gradient_scaler(name: str, overflows: bool) -> None:
    """What a GradScaler hands to a fused optimizer: gradients that are scaled, and whether one is not finite."""
    make, options = OPTIMIZERS[name]
    results = []
    for device in ("cpu", "xla"):
        model = network().to(device)
        optimizer = make(model.parameters(), lr=0.1, fused=True, **options)
        for step in range(3):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5) * 8
            optimizer.grad_scale = torch.tensor(8.0, device=device)  # type: ignore[attr-defined]
            optimizer.found_inf = torch.tensor(float(overflows and step == 1), device=device)  # type: ignore[attr-defined]
            optimizer.step()
            torch_xla.sync()
        results.append([p.detach().cpu() for p in model.parameters()] + [p.grad.cpu() for p in model.parameters()])
    torch.testing.assert_close(results[1], results[0])


def test_half_precision_parameters() -> None:
    there = network().bfloat16()
    here = copy.deepcopy(there).to("xla")
    for model in (there, here):
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.25)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        optimizer.step()
    assert {p.dtype for p in here.parameters()} == {torch.bfloat16}
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def test_state_that_is_loaded() -> None:
    here = network().to("xla")
    optimizer = torch.optim.AdamW(here.parameters(), fused=True)
    trained(here, optimizer, 2, lambda step: 0.1)
    state = copy.deepcopy(optimizer.state_dict())
    again = torch.optim.AdamW(here.parameters(), fused=True)
    again.load_state_dict(state)
    assert [s["step"].item() for s in again.state.values()] == [2.0] * 4
