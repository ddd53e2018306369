"""A resumed optimizer steps as a fresh one: its scalars are where a fresh optimizer keeps them, and none is read."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn, optim

import torch_xla
from tests.support.helpers import counts

#: Optimizers and options, and the scalars of their state that torch reads in each step.
OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "Adam": (optim.Adam, {}),
    "AdamW": (optim.AdamW, {}),
    "AdamW, one parameter after the other": (optim.AdamW, {"foreach": False}),
    "AdamW, fused": (optim.AdamW, {"fused": True}),
    "AdamW, capturable": (optim.AdamW, {"capturable": True}),
    "Adagrad": (optim.Adagrad, {}),
    "Adamax": (optim.Adamax, {}),
    "NAdam": (optim.NAdam, {}),
    "NAdam, capturable": (optim.NAdam, {"capturable": True}),
    "RAdam": (optim.RAdam, {}),
    "Rprop": (optim.Rprop, {}),
    "SGD": (optim.SGD, {"momentum": 0.9}),
}


def _start(make: type[optim.Optimizer], options: dict[str, Any]) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("xla")
    return model, make(model.parameters(), lr=0.01, **options)  # type: ignore[call-arg]


def _train(model: nn.Module, optimizer: optim.Optimizer, steps: int) -> list[torch.Tensor]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 4, device="xla")) - 1).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return losses


def _placement(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, str]:
    state = optimizer.state[next(model.parameters())]
    return {name: value.device.type for name, value in state.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("map_location", ["cpu", "xla", "xla:0", torch.device("xla")], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume(name: str, map_location: Any) -> None:
    model, optimizer = _start(*OPTIMIZERS[name])
    _train(model, optimizer, 2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    fresh = _placement(model, optimizer)
    expected = torch.stack(_train(model, optimizer, 3)).cpu()

    file.seek(0)
    saved = torch.load(file, map_location=map_location)
    model, optimizer = _start(*OPTIMIZERS[name])
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert _placement(model, optimizer) == fresh
    with counts() as known:
        losses = _train(model, optimizer, 3)
    assert known["aten::_local_scalar_dense"] == 0
    torch.testing.assert_close(torch.stack(losses).cpu(), expected, rtol=0, atol=0)


def test_other_optimizers_keep_their_state() -> None:
    """A class that is not torch's may keep its step count on the device."""

    class Own(optim.Optimizer):
        def step(self, closure: Any = None) -> Any:
            raise NotImplementedError

    parameter = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = Own([parameter], {"lr": 0.1})
    saved = optimizer.state_dict() | {"state": {0: {"step": torch.ones((), device="xla")}}}
    optimizer.load_state_dict(saved)
    assert optimizer.state[parameter]["step"].device.type == "xla"
