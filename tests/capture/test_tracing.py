"""torch.export, fx and jit tracers, fake tensors, dispatch modes and opcheck take xla tensors as they take others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from tests.support.helpers import assert_same, counts

pytestmark = [
    # torch.export of 2.13 does what torch.utils._pytree of 2.13 warns of.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]


def _module() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to("xla")


def _function(x: Tensor) -> Tensor:
    y = x.clone()
    y.t()[1].mul_(2)
    return y.sin().t().contiguous().view(-1).cumsum(0) + torch.arange(20.0, device=x.device)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_exported_from_xla(decomposed: bool, strict: bool) -> None:
    module = _module()
    x = torch.randn(5, 4, device="xla")
    shapes = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=strict)
    if decomposed:
        program = program.run_decompositions()
    with counts() as moved:
        for rows in (5, 2, 7):
            x = torch.randn(rows, 4, device="xla")
            assert_same(program.module()(x).detach(), module(x).detach().cpu())
    assert moved.fallbacks == set()


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str) -> None:
    x = torch.randn(5, 4, device="xla")
    graph = make_fx(_function, tracing_mode=mode)(x)
    other = torch.randn(5, 4)
    assert_same(graph(other.to("xla")), _function(other))


def test_symbolic_trace() -> None:
    module = _module()
    x = torch.randn(5, 4, device="xla")
    assert_same(torch.fx.symbolic_trace(module)(x).detach(), module(x).detach().cpu())


def test_aot_function() -> None:
    x = torch.randn(5, 4, device="xla", requires_grad=True)
    aot_function(lambda x: x.sin().t().sum(), lambda graph, inputs: make_boxed_func(graph))(x).backward()
    assert x.grad is not None
    assert_same(x.grad, x.detach().cpu().cos())


def test_functionalize() -> None:
    x = torch.randn(5, 4)
    assert_same(torch.func.functionalize(_function)(x.to("xla")), _function(x))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace_method. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace(_method)?. is deprecated:FutureWarning")  # torch 2.15
def test_jit_trace() -> None:
    module = _module()
    x = torch.randn(5, 4, device="xla")
    traced = torch.jit.trace(module, (x,))
    for _ in range(3):  # the later ones by the optimizing executor
        assert_same(traced(x).detach(), module(x).detach().cpu())
        traced(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@torch.library.custom_op("xla_tracing::scaled", mutates_args=())
def scaled(x: Tensor, by: float) -> Tensor:
    """Return a new tensor."""
    return x.sin() * by


scaled.register_fake(lambda x, by: torch.empty_like(x))
scaled.register_autograd(
    lambda ctx, g: (g * ctx.saved_tensors[0].cos() * ctx.by, None),
    setup_context=lambda ctx, inputs, output: (ctx.save_for_backward(inputs[0]), setattr(ctx, "by", inputs[1])),
)


@torch.library.custom_op("xla_tracing::scale_", mutates_args=("x",))
def scale_(x: Tensor, by: float) -> None:
    """Write to the argument."""
    x.mul_(by)


#: torch 2.13 checks the registration of gradients on tensors of the CPU, CUDA and XPU only, and says so.
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch 2.15 warns about its clone
@pytest.mark.parametrize("gradient", [False, True])
def test_opcheck(gradient: bool) -> None:
    x = torch.randn(3, device="xla", requires_grad=gradient)
    results = torch.library.opcheck(scaled, (x, 2.0), test_utils=CHECKS)
    if not gradient:
        results |= torch.library.opcheck(scale_, (torch.randn(3, 4, device="xla").t(), 2.0))
    assert set(results.values()) == {"SUCCESS"}


def test_fake_tensors() -> None:
    with counts() as moved, FakeTensorMode():
        x, w = torch.empty(3, 4, device="xla"), torch.empty(4, 5, device="xla", requires_grad=True)
        y = (x @ w).relu().t()[0]
        y.sum().backward()
        x[0] = 1
        out, _ = nn.LSTM(4, 6, device="xla")(x)
        loss = nn.functional.scaled_dot_product_attention(*[torch.empty(1, 2, 3, 4, device="xla")] * 3).prod()
    assert isinstance(y, FakeTensor) and w.grad is not None
    assert (y.shape, w.grad.shape, out.shape, loss.shape) == ((3,), (4, 5), (3, 6), ())
    assert {t.device.type for t in (y, w.grad, out, loss)} == {"xla"}
    assert moved.executions == 0 and moved.compilations == 0


def test_fakes_of_real_tensors() -> None:
    mode = FakeTensorMode()
    x = torch.randn(3, 4, device="xla")
    fake = mode.from_tensor(x.t())
    with mode:
        assert (fake * 2).shape == (4, 3) and fake.device == x.device
        assert (fake + torch.empty(4, 3, device="xla")).device == x.device, "xla alone is the current device"
        with pytest.raises(Exception, match=r"xla:0.*cpu"):
            fake + torch.empty(4, 3)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not x.t().is_contiguous() and x.t().mT.is_contiguous()


class Log(TorchDispatchMode):
    """Notes the ops that pass it."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


def test_dispatch_mode() -> None:
    x = torch.randn(3, 4, device="xla", requires_grad=True)
    with Log() as log:
        (x.t() @ x).relu().sum().backward()
        y = x.detach().t().reshape(-1).clone()
        y[0] = 1
        shown = y.cpu()
    assert log.ops[:4] == ["aten::t", "aten::mm", "aten::relu", "aten::sum"] and "aten::threshold_backward" in log.ops
    assert shown[0] == 1 and x.grad is not None


def test_default_device_mode() -> None:
    with torch.device("xla"):
        x = torch.ones(3)
        assert x.device.type == "xla" and x.cpu().tolist() == [1, 1, 1] and x.sum().item() == 3
        assert repr(x * 2) == "tensor([2., 2., 2.], device='xla:0')"
        torch_xla.sync()
