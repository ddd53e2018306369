"""User operators of torch.library, and programs exported by torch.export, run on xla."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass
from torch.func import vmap

import torch_xla
from tests.support.helpers import assert_same, counts, same

FALLBACK = "ignore:torch_xla. xla_test:UserWarning"
LIBRARY = torch.library.Library("xla_test", "DEF")
LIBRARY.define("cpu_only(Tensor x, float by) -> Tensor")
LIBRARY.define("cpu_writes(Tensor(a!) x) -> ()")
LIBRARY.define("everywhere(Tensor x) -> Tensor")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.define("here(Tensor x, Tensor[] more) -> (Tensor, Tensor)")
LIBRARY.define("missing(Tensor x) -> Tensor")
torch.library.impl(LIBRARY, "cpu_only", "CPU")(lambda x, by: x * by)
torch.library.impl(LIBRARY, "everywhere", "CompositeExplicitAutograd")(lambda x: x.sin() + 1)
torch.library.impl(LIBRARY, "composite", "CompositeImplicitAutograd")(lambda x: x.sin() * x)


@torch.library.impl(LIBRARY, "cpu_writes", "CPU")
def _cpu_writes(x: Tensor) -> None:
    x.add_(1)


for _key in ("CPU", "XLA"):
    torch.library.impl(LIBRARY, "here", _key)(lambda x, more: (x @ more[0], more[1].relu()))


@torch.library.custom_op("xla_test::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """A custom op in Python with a fake implementation, a gradient and a vmap rule."""
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return torch.empty_like(x)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.by = inputs[1]


scaled.register_autograd(lambda ctx, g: (scaled(g, ctx.by), None), setup_context=_remember)
scaled.register_vmap(lambda info, in_dims, x, by: (scaled(x, by), in_dims[0]))


@torch.library.custom_op("xla_test::through_numpy", mutates_args=(), device_types="cpu")
def through_numpy(x: Tensor) -> Tensor:
    """A kernel that only accepts CPU memory."""
    return torch.from_numpy(x.numpy() + 1)


@torch.library.custom_op("xla_test::bump", mutates_args={"x"})
def bump(x: Tensor) -> None:
    """A kernel that writes to its argument."""
    x.add_(1)


@torch.library.custom_op("xla_test::both", mutates_args=(), device_types="cpu")
def both(x: Tensor) -> Tensor:
    """One kernel for the CPU and one for xla."""
    return x + 1


both.register_kernel("xla")(lambda x: x + 1)


OPS: dict[str, Any] = {
    "everywhere": torch.ops.xla_test.everywhere,
    "composite": lambda x: torch.autograd.grad(torch.ops.xla_test.composite(x.requires_grad_()).sum(), x),
    "kernel for xla": lambda x: torch.ops.xla_test.here(x, [x.t(), x]),
    "custom op": lambda x: scaled(x, 3.0),
    "custom op with gradient": lambda x: torch.autograd.grad(scaled(x.requires_grad_(), 3.0).exp().sum(), x),
    "custom op under vmap": lambda x: vmap(lambda v: scaled(v, 2.0))(x),
    "custom op that writes": lambda x: [bump(x), bump(x[0]), x][-1],
    "custom op with a kernel for xla": both,
}


@pytest.mark.parametrize("name", OPS)
def test_on_the_device(name: str) -> None:
    with counts() as moved:
        same(OPS[name], torch.randn(2, 3))
    assert not any(key.startswith(("aten::", "xla_test::")) for key in moved), "nothing ran on the CPU"


@pytest.mark.filterwarnings(FALLBACK)
def test_on_the_cpu_counted() -> None:
    with counts() as moved:
        same(lambda x: torch.ops.xla_test.cpu_only(x * 2, 1.5) + 1, torch.randn(2, 3))
        same(through_numpy, torch.randn(2, 3))
        same(lambda x: [torch.ops.xla_test.cpu_writes(x), torch.ops.xla_test.cpu_writes(x[1]), x][-1], torch.ones(2, 3))
    names = ("xla_test::cpu_only", "xla_test::through_numpy", "xla_test::cpu_writes")
    assert moved.only(*names) == dict(zip(names, (1, 1, 2), strict=True))


@pytest.mark.filterwarnings(FALLBACK)
def test_an_op_without_any_kernel() -> None:
    with pytest.raises(NotImplementedError, match="xla_test::missing"):
        torch.ops.xla_test.missing(torch.ones(2, device="xla"))


@pytest.mark.usefixtures("cold")
def test_a_step_with_custom_ops_compiles_once() -> None:
    x = torch.ones(3, device="xla", requires_grad=True)
    torch_xla.sync()
    with counts() as moved:
        for _ in range(3):
            x.grad = None
            scaled(x, 2.0).sum().backward()
            torch_xla.sync()
    assert moved.compilations == 1


class Program(nn.Module):
    """A module with parameters, a buffer that it writes to, a constant and a factory function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.register_buffer("calls", torch.zeros(()))
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.layers(x) * self.constant.to(x.device) + torch.arange(4, device=x.device)


@pytest.mark.parametrize("training", [True, False])
def test_exported_program(training: bool) -> None:
    module = Program().train(training)
    x = torch.randn(5, 3)
    program = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("n")}})
    moved_program = move_to_device_pass(program, "xla").module()
    with counts() as moved:
        for rows in (5, 7):
            value = torch.randn(rows, 3)
            assert_same(moved_program(value.to("xla")).detach(), module(value).detach(), rtol=1e-5, atol=1e-6)
    assert_same(moved_program.calls, torch.tensor(2.0))
    assert moved.fallbacks == set()
