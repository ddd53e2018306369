"""Gradients match the CPU; hooks, version counters and graph lifetime behave as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.support.helpers import counts, same


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def _grad_of(x: Tensor, y: Tensor, **options: Any) -> Tensor:
    return torch.autograd.grad(y, x, **options)[0]


def _double(x: Tensor) -> Tensor:
    return _grad_of(x, _grad_of(x, x.pow(4).sum(), create_graph=True).pow(2).sum())


def _hooks(x: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    y = x * 2
    y.register_hook(seen.append)
    handle = x.register_hook(lambda grad: grad * 10)
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    return [x.grad, *seen]


def _data(x: Tensor) -> list[Tensor]:
    y = x * x
    x.data = x.data + 1
    x.data.mul_(2)
    y.sum().backward()
    return [x.grad, x.detach()]


def _accumulate(x: Tensor) -> Tensor:
    for _ in range(3):
        (x.sin() + x.detach() * x).sum().backward()
    return x.grad


def _leaf_update(x: Tensor) -> Tensor:
    (x**2).sum().backward()
    with torch.no_grad():
        x -= 0.1 * x.grad
        x[0].mul_(3)
        x.grad.zero_()
    (x**2).sum().backward()
    return x.grad


AUTOGRAD: dict[str, Callable[[Tensor], Any]] = {
    "double backward": _double,
    "hooks": _hooks,
    ".data": _data,
    "accumulate": _accumulate,
    "leaf update": _leaf_update,
    "function": lambda x: _grad_of(x, Cube.apply(x).sum()),
    "checkpoint": lambda x: _grad_of(x, checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False).sum()),
    "checkpoint re-entrant": lambda x: (checkpoint(torch.sin, x, use_reentrant=True).sum().backward(), x.grad)[1],
    "in place on a non-leaf": lambda x: _grad_of(x, (x * 1).mul_(2).add_(x).sum()),
    "index_fill": lambda x: _grad_of(x, (x * 2).index_fill(0, torch.tensor([0], device=x.device), 1.0).pow(2).sum()),
    "slice assignment": lambda x: _grad_of(x, _assign(x).pow(2).sum()),
    "view": lambda x: _grad_of(x, x.t()[1:].reshape(-1)[::2].sum()),
    "expand": lambda x: _grad_of(x, x[:1].expand(5, 3).mul(2).sum()),
    "split": lambda x: _grad_of(x, x.split(1, dim=1)[1].sum() + x.unbind()[0].exp().sum()),
    "gather": lambda x: _grad_of(x, x[torch.tensor([0, 0, 1], device=x.device)].cumsum(0).sum()),
    "to double": lambda x: _grad_of(x, x.double().pow(2).sum()),
    "across devices": lambda x: _grad_of(x, x.cpu().pow(2).sum()),
    "grad of grad_fn": lambda x: _grad_of(x, torch.where(x > 0, x * 2, x.exp()).mean()),
    "jacobian": lambda x: torch.autograd.functional.jacobian(lambda v: v.sin().sum(0), x),
}


def _assign(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3, device=x.device)
    y[1:3] = x
    y[:, 0] *= 3
    return y


@pytest.mark.parametrize("name", AUTOGRAD)
def test_autograd(name: str) -> None:
    with counts() as moved:
        same(AUTOGRAD[name], torch.randn(2, 3, requires_grad=True), rtol=1e-5, atol=1e-6)
    assert moved.fallbacks == set()


def test_no_grad_and_detach() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).is_inference()
    y = x.detach()
    assert not y.requires_grad and y.is_leaf
    y.add_(1)
    assert x.tolist() == [2, 2], "detach shares memory"
    assert (x * 2).is_leaf is False and (x * 2).grad_fn is not None


def test_graph_is_freed_as_on_cpu() -> None:
    y = torch.ones(2, device="xla", requires_grad=True).exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


def test_version_counter() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    y = x.exp()
    z = (y * y).sum()
    y.view(-1)[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place operation"):
        x.mul_(2)
    assert x._version == 0 and y._version == 1
