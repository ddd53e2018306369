"""Optimizers without foreach= or fused= use the foreach implementation, as on GPUs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.overrides import TorchFunctionMode

import torch_xla
from tests.support.helpers import counts, run_script
from tests.torch_patches.test_fused_optimizers import trained

#: Optimizers and options.
OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, Any]]] = {
    "Adadelta": (optim.Adadelta, {"weight_decay": 0.1}),
    "Adadelta, capturable": (optim.Adadelta, {"capturable": True}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
    "Adam": (optim.Adam, {"weight_decay": 0.1}),
    "Adam, amsgrad, maximize": (optim.Adam, {"amsgrad": True, "maximize": True}),
    "Adam, capturable": (optim.Adam, {"capturable": True}),
    "AdamW": (optim.AdamW, {"weight_decay": 0.1, "betas": (0.8, 0.99)}),
    "AdamW, capturable, amsgrad": (optim.AdamW, {"capturable": True, "amsgrad": True}),
    "Adamax": (optim.Adamax, {}),
    "Adamax, capturable": (optim.Adamax, {"capturable": True}),
    "ASGD": (optim.ASGD, {"t0": 2}),
    "ASGD, capturable": (optim.ASGD, {"capturable": True}),
    "NAdam": (optim.NAdam, {}),
    "NAdam, capturable": (optim.NAdam, {"capturable": True, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": (optim.RAdam, {}),
    "RAdam, capturable": (optim.RAdam, {"capturable": True}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "RMSprop, capturable": (optim.RMSprop, {"capturable": True}),
    "Rprop": (optim.Rprop, {}),
    "Rprop, capturable": (optim.Rprop, {"capturable": True}),
    "SGD": (optim.SGD, {}),
    "SGD, nesterov": (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
}


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


class _Called(TorchFunctionMode):
    """The names of torch's functions that are called in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def _uses_lists(call: Callable[[], object]) -> bool:
    with _Called() as called:
        call()
    return any(name.startswith("_foreach") for name in called.names)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_the_cpus(name: str) -> None:
    """Eight steps with changing rates: losses, parameters and state; lists, and nothing compiled after two."""
    make, options = OPTIMIZERS[name]
    there, here = _network(), _network().to("xla")
    on_cpu = options | ({"capturable": False} if "capturable" in options else {})  # torch has none there
    rates = lambda step: 0.05 / (step + 1)
    expected = trained(there, make(there.parameters(), **on_cpu), 8, rates)
    optimizer = make(here.parameters(), **options)
    with counts() as first:
        losses = trained(here, optimizer, 3, rates)[0]
    torch.testing.assert_close(losses, expected[0][:3], rtol=1e-4, atol=1e-5)
    here.load_state_dict(_network().state_dict())
    optimizer = make(here.parameters(), **options)
    with counts() as known:
        found = trained(here, optimizer, 8, rates)
    assert not first.fallbacks | known.fallbacks and known.compilations <= 2
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.to(want.dtype), want, rtol=1e-4, atol=1e-5)
    for p in here.parameters():
        p.grad = torch.ones_like(p)
    assert _uses_lists(optimizer.step)


def test_parameters_of_several_kinds_and_devices() -> None:
    """Groups are made by device and dtype; without a gradient, of no elements, complex ones."""
    values = [torch.randn(3), torch.randn(2, 2).bfloat16(), torch.randn(0, 3), torch.randn(2, dtype=torch.cfloat)]
    results = []
    for device in ("cpu", "xla"):
        parameters = [nn.Parameter(v.clone().to(device)) for v in [*values, torch.ones(2)]]
        for p in parameters[:-1]:
            p.grad = torch.full_like(p, 0.5)
        optimizer = optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.5}], lr=0.1)
        for _ in range(3):
            optimizer.step()
            torch_xla.sync()
        results.append([p.detach().cpu() for p in parameters])
    torch.testing.assert_close(results[1], results[0])


def test_what_is_said_is_done() -> None:
    """foreach=False is one parameter after the other; a rate in a tensor is taken as it is."""
    model = _network().to("xla")
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert not _uses_lists(optim.AdamW(model.parameters(), foreach=False).step)
    rate = torch.tensor(0.1)
    there = copy.deepcopy(model).cpu()
    for p in there.parameters():
        p.grad = torch.ones_like(p)
    for one in (model, there):
        optim.SGD(one.parameters(), lr=rate.to(next(one.parameters()).device)).step()
    for a, b in zip(model.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0, float("inf")])
def test_clipping(norm: float) -> None:
    found = []
    for device in ("cpu", "xla"):
        model = _network().to(device)
        for number, p in enumerate(model.parameters()):
            p.grad = torch.full_like(p, 0.1 * (number + 1))
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=norm)
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        found.append([total.cpu(), *(p.grad.cpu() for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0])
    model = _network().to("xla")
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert _uses_lists(lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def test_optimizers_are_scripted_as_they_are() -> None:
    """torch.distributed.optim does that when it is imported, which ignite does. (torch says that it is deprecated.)"""
    done = run_script(
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch, torch_xla
        from torch.distributed.optim import functional_adadelta
        x = torch.ones(3)
        functional_adadelta._FunctionalAdadelta([x]).step([torch.ones(3)])
        assert (x < 1).all()
    """,
        check=False,
    )
    assert done.returncode == 0, done.stderr
