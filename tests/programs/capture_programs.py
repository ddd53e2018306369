"""Captured, compiled and exported functions with sharded tensors; test_sharded.py runs them on four devices.

Every function asserts values and gradients against eager CPU torch.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.func import functional_call

import torch_xla
import torch_xla.distributed.spmd as xs
from tests.programs.sharded_programs import devices, row
from tests.support.helpers import counts
from torch_xla import interop, stablehlo
from torch_xla.core import xla_builder as xb
from torch_xla.experimental.assume_pure import PureModule, assume_pure


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))


def _split(model: nn.Module) -> nn.Module:
    """Return the model on xla, with the first dimension of each parameter sharded."""
    model = model.to("xla")
    for p in model.parameters():
        xs.mark_sharding(p, row(), ("fsdp", *(None,) * (p.dim() - 1)))
    return model


def _batch(step: int, device: str) -> torch.Tensor:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step)).to(device)
    return x if device == "cpu" else xs.mark_sharding(x, row(), ("fsdp", None))


def _train(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[torch.Tensor]:
    """Train four steps and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = call(_batch(step, device)).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return losses


def _trains_as_the_cpu(wrap: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]], net: nn.Module) -> None:
    want, model = copy.deepcopy(net), _split(copy.deepcopy(net))
    expected = _train(want, want, "cpu")
    with counts() as moved:
        losses = _train(model, wrap(model), "xla")
    assert moved.compilations == 2 and not moved.fallbacks
    torch.testing.assert_close(torch.stack(losses).cpu(), torch.stack(expected))
    for p, reference in zip(model.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), reference.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(p.grad.cpu(), reference.grad, rtol=1e-4, atol=1e-5)
        assert len(p.local_shards) == devices() and p.local_shards[0].data.shape[0] == p.shape[0] // devices()


def pure() -> None:
    """PureModule, and assume_pure of a function of parameters: they stay sharded, with the values of the module."""
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4))

    def functional(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        run = assume_pure(lambda state, x: functional_call(model, state, (x,)))
        return lambda x: run(dict(model.named_parameters()), x)

    _trains_as_the_cpu(PureModule, net)
    _trains_as_the_cpu(functional, net)


def compiled() -> None:
    """torch.compile: buffers are written; forward and backward are one node each of a program over all devices."""
    _trains_as_the_cpu(lambda model: torch.compile(model, backend="openxla"), _net())
    model = _net().eval()
    split = torch.compile(_split(copy.deepcopy(model)), backend="openxla")
    with torch.no_grad():
        for step in range(3):
            torch.testing.assert_close(split(_batch(step, "xla")).cpu(), model(_batch(step, "cpu")))


def _cube(x: Any, w: Any) -> Any:
    return (x @ w) ** 3


def jax_functions() -> None:
    """A jax function of sharded tensors with gradient; an XLA computation; a torch module under jax."""
    x, w = torch.randn(8, 4), torch.randn(4, 8)
    expected = [t.clone().requires_grad_() for t in (x, w)]
    _cube(*expected).sum().backward()
    ours = [xs.mark_sharding(t.to("xla"), row(), ("fsdp", None)).requires_grad_() for t in (x, w)]
    y = interop.jax_function(_cube)(*ours)
    torch.testing.assert_close(y.detach().cpu(), _cube(x, w), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    for mine, want in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), want.grad, rtol=1e-4, atol=1e-4)
    plain = [t.detach() for t in ours]
    for call in (lambda *a: xb.call_jax(_cube, a), xb.xla_computation_as_func(_computation())):
        torch.testing.assert_close(call(*plain).cpu(), _cube(x, w), rtol=1e-4, atol=1e-4)

    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    function, parameters = interop.module_as_jax(_split(copy.deepcopy(net)))
    assert all(len(array.sharding.device_set) == devices() for array in parameters.values())
    data = _batch(0, "cpu")
    gradients = jax.jit(jax.grad(lambda p, a: jnp.sum(function(p, a) ** 2)))(parameters, jnp.asarray(data.numpy()))
    net(data).square().sum().backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(torch.tensor(np.asarray(gradients[name])), p.grad, rtol=1e-4, atol=1e-4)


def _computation() -> Any:
    shapes = [xb.mkshape(xb.Type.F32, sizes) for sizes in ((8, 4), (4, 8))]
    return xb.create_computation("cube", lambda x, w: (x @ w) * (x @ w) * (x @ w), shapes)


def shipped() -> None:
    """A model exported to StableHLO, called with a sharded batch before any other use of a device."""
    model = _net().eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        stablehlo.save_torch_model_as_stablehlo(model, (_batch(0, "cpu"),), folder)
        loaded = stablehlo.StableHLOGraphModule.load(folder)
        for step in range(2):
            torch.testing.assert_close(loaded(_batch(step, "xla")).cpu(), model(_batch(step, "cpu")))


#: For four devices; tests/capture covers one device.
ON_FOUR: list[Callable[[], None]] = [pure, compiled, jax_functions, shipped]
