"""Modules built on scan: gradient accumulation and GRU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
from tests.support.helpers import assert_same, counts, run_script, same
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.gru import GRU


@pytest.mark.parametrize("with_gradients", [False, True])
def test_accumulated_gradients_equal_gradients_of_mean(with_gradients: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 3))
    model[3].requires_grad_(False)
    if with_gradients:
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.requires_grad else None
    twin = copy.deepcopy(model)
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        p.grad = None if q.grad is None else q.grad.clone()
    twin = twin.to("xla")
    inputs, labels, scale = torch.randn(5, 6, 4), torch.randint(3, (5, 6)), torch.tensor(1.0)

    def step_of(model: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
        def step(x: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
            return F.cross_entropy(model(x * scale), y), scale * 1.5

        return step

    total, carried = torch.tensor(0.0), scale
    for x, y in zip(inputs, labels, strict=True):
        loss, carried = step_of(model)(x, y, carried)
        (loss / 5).backward()
        total = total + loss.detach() / 5
    given = [t.to("xla") for t in (inputs, labels)]
    torch_xla.sync()
    with counts() as moved:
        found = gradient_accumulation(step_of(twin), given, twin, scale.to("xla"))
        torch_xla.sync()
    assert moved.compilations <= 1 and not moved.fallbacks
    assert_same(found, (total, carried), rtol=1e-4, atol=1e-5)
    gradients = [p.grad for p in twin.parameters() if p.grad is not None]
    assert_same(gradients, [p.grad for p in model.parameters() if p.grad is not None], rtol=1e-4, atol=1e-5)


def test_accumulation_without_carried_tensors_and_errors() -> None:
    model, x = nn.Linear(4, 2).to("xla"), torch.ones(3, 5, 4).to("xla")
    loss = gradient_accumulation(lambda x: model(x).sum(), (x,), model)
    assert loss.shape == () and model.bias.grad is not None
    assert_same(model.bias.grad, torch.full((2,), 5.0))
    with pytest.raises(ValueError, match=r"expected a one-element loss, got shape \[5, 2\]"):
        gradient_accumulation(lambda x: model(x), (x,), model)
    with pytest.raises(ValueError, match="nonempty first dimension"):
        gradient_accumulation(lambda x: model(x), (), model)


GRUS = {
    "plain": ({}, (5, 3, 4), False),
    "layers": ({"num_layers": 2, "batch_first": True}, (3, 5, 4), True),
    "both": ({"num_layers": 2, "bidirectional": True, "bias": False}, (5, 3, 4), True),
    "unbatched": ({}, (5, 4), True),
}


@pytest.mark.parametrize("name", GRUS)
def test_gru_matches_torch(name: str) -> None:
    options, shape, with_state = GRUS[name]
    torch.manual_seed(0)
    gru = GRU(4, 6, **options)
    count = gru.num_layers * (2 if gru.bidirectional else 1)
    x = torch.randn(shape).requires_grad_()
    h = torch.randn((count, 3, 6) if len(shape) == 3 else (count, 6)).requires_grad_()

    def run(x: Tensor, h: Tensor, *weights: Tensor) -> object:
        names = [n for n, _ in gru.named_parameters()]
        args = (x, h) if with_state else (x,)
        output, last = torch.func.functional_call(gru, dict(zip(names, weights, strict=True)), args)
        total = output.pow(2).sum() + last.pow(3).sum()
        return output, last, torch.autograd.grad(total, [*args, *weights])

    weights = [p.detach().requires_grad_() for p in gru.parameters()]
    same(run, x, h, *weights, rtol=1e-3, atol=1e-4)


def test_gru_errors() -> None:
    gru = GRU(4, 6).to("xla")
    with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 3, 6\), got \[2, 3, 6\]"):
        gru(torch.ones(5, 3, 4).to("xla"), torch.ones(2, 3, 6).to("xla"))


SPREAD = """
import copy, torch, torch_xla, torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
from torch import nn
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.gru import GRU

xr.use_spmd()
mesh = xs.Mesh(range(4), (4,), ("data",))
torch.manual_seed(0)
model, gru, x = nn.Linear(4, 3), GRU(4, 6), torch.randn(2, 8, 4)
ours, gru_there, there = copy.deepcopy(model).to("xla"), copy.deepcopy(gru).to("xla"), x.to("xla")
xs.mark_sharding(there, mesh, (None, "data", None))
loss = gradient_accumulation(lambda x: ours(x).pow(2).mean(), (there,), ours)
wanted = torch.stack([model(row).pow(2).mean() for row in x]).mean()
wanted.backward()
torch.testing.assert_close(loss.cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
torch.testing.assert_close(ours.weight.grad.cpu(), model.weight.grad, rtol=1e-4, atol=1e-5)
found, expected = gru_there(there)[0], gru(x)[0]
torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
found.sum().backward(), expected.sum().backward()
torch.testing.assert_close(gru_there.weight_hh_l0.grad.cpu(), gru.weight_hh_l0.grad, rtol=1e-4, atol=1e-4)
print("done")
"""


def test_accumulation_and_gru_with_spmd() -> None:
    done = run_script(SPREAD, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr
