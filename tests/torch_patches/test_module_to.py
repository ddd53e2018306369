"""``module.to("xla")`` and back: Parameter objects are preserved, as on other devices."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import assert_same, to


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[2].weight = model[0].weight
    return model


def test_parameters_keep_their_identity_and_ties() -> None:
    model = _model()
    weight, bias = model[0].weight, model[0].bias
    weight.note, bias.requires_grad = "kept", False
    for device in ("xla", "cpu", "xla", "xla"):
        assert model.to(device) is model
        assert model[0].weight is weight is model[2].weight and model[0].bias is bias
        assert weight.device.type == device and weight.is_leaf and weight.note == "kept" and not bias.requires_grad
    assert model.double()[0].weight is weight and weight.dtype == torch.float64


def test_optimizer_made_before_the_move_trains() -> None:
    """Fabric on one device does this; with new parameters it would not learn, and say nothing."""
    expected, model = _model(), _model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (expected, model)]
    model.to("xla")
    x = torch.linspace(-1, 1, 6).view(2, 3)
    for _ in range(3):
        for m, optimizer, device in zip((expected, model), optimizers, ("cpu", "xla"), strict=True):
            optimizer.zero_grad()
            m(x.to(device)).pow(2).sum().backward()
            optimizer.step()
        torch_xla.sync()
    assert_same(dict(model.state_dict()), dict(expected.state_dict()), rtol=1e-3, atol=1e-4)


def test_gradients_and_hooks_move_along() -> None:
    model = _model()
    seen: list[str] = []
    handle = model[0].weight.register_hook(lambda g: seen.append(g.device.type))
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append("after " + p.device.type))
    model(torch.ones(2, 3)).sum().backward()
    gradient = model[0].weight.grad.clone()
    model.to("xla")
    assert_same(model[0].weight.grad, gradient)
    model.zero_grad()
    model(torch.ones(2, 3, device="xla")).sum().backward()
    assert seen == ["cpu", "after cpu", "xla", "after xla"]
    handle.remove()
    model(torch.ones(2, 3, device="xla")).sum().backward()
    assert seen[4:] == ["after xla"]


def test_parameter_in_use_becomes_a_new_one_and_says_so() -> None:
    model = nn.Linear(2, 2)
    watched = weakref.ref(model.weight)
    with pytest.warns(UserWarning, match=r"Linear\.weight \[2, 2\] was replaced by a new Parameter on xla:0 .*weakref"):
        model.to("xla")
    assert model.weight.device.type == "xla" and model.weight is not watched()
    assert model(torch.ones(1, 2, device="xla")).shape == (1, 2)


@pytest.mark.parametrize("make", [lambda: nn.LSTM(2, 3), lambda: nn.MultiheadAttention(4, 2)])
def test_modules_with_weights_of_their_own_kind(make: object) -> None:
    torch.manual_seed(0)
    model = make()  # type: ignore[operator]
    names = {id(p): name for name, p in model.named_parameters()}
    x = torch.rand(5, 1, next(iter(model.parameters())).shape[-1])
    arguments = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    expected = model(*arguments)[0].detach()
    model.to("xla")
    assert {id(p): name for name, p in model.named_parameters()} == names
    assert_same(model(*to("xla", arguments))[0].detach(), expected, rtol=1e-4, atol=1e-5)


def test_to_empty_and_lazy_modules() -> None:
    model = nn.Linear(2, 2, device="meta").to_empty(device="xla")
    assert model.weight.device.type == "xla"
    lazy = nn.LazyLinear(3).to("xla")
    assert lazy(torch.ones(1, 5, device="xla")).shape == (1, 3)
    assert type(lazy.weight) is nn.Parameter and lazy.weight.device.type == "xla"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3)).eval()
    x = torch.linspace(-1, 1, 6).view(2, 3)
    expected = model(x).detach()
    scripted = torch.jit.script(model)
    assert scripted.to("xla") is scripted
    assert {t.device.type for t in (*scripted.parameters(), *scripted.buffers())} == {"xla"}
    for _ in range(3):  # the profiling executor optimizes at the second call
        torch.testing.assert_close(scripted(x.to("xla")).cpu(), expected)
    torch.testing.assert_close(scripted.cpu()(x), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_parameters_of_a_scripted_module_keep_their_identity() -> None:
    model = nn.Linear(3, 2)
    scripted = torch.jit.script(model)
    optimizer = torch.optim.SGD(scripted.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    scripted.to("xla")
    assert scripted.weight is model.weight and model.weight.device.type == "xla"
    scripted(torch.ones(4, 3, device="xla")).sum().backward()
    optimizer.step()
    torch.testing.assert_close(scripted.weight.cpu(), before - 0.4)
