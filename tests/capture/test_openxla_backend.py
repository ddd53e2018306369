"""torch.compile(backend="openxla") against eager torch on the CPU: values, gradients, writes, views and counts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()
    met.clear_all()
    torch.manual_seed(0)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def _train(model: nn.Module, call: Function, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def test_training() -> None:
    """BatchNorm writes to its buffers; forward and backward are one node each; two programs, as without."""
    model, x, y = _network(), torch.randn(5, 8), torch.randint(0, 4, (5,))
    on_cpu, on_xla = copy.deepcopy(model), copy.deepcopy(model).to("xla")
    want = _train(on_cpu, on_cpu, x, y)
    got = _train(on_xla, torch.compile(on_xla, backend="openxla"), x.to("xla"), y.to("xla"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    for name, value in on_cpu.state_dict().items():
        torch.testing.assert_close(on_xla.state_dict()[name].cpu(), value, rtol=1e-3, atol=1e-4)
    assert met.counter_value("xla::jax_call") == 8
    assert met.counter_value("DynamoRunAsItIs") is None
    assert met.counter_value("UncachedSyncTensors") == 2


def _write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    y[1:].mul_(x[1:])
    return x * y


def _views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x + y
    return x.t(), x, z, z[1:], y.view(-1)[::2]


def _broken(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x * 2
    torch._dynamo.graph_break()
    return (x + y).relu()


def _written_then_viewed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y)
    return x[0]


def _constants(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    return x.shape[0], None, (x + torch.tensor([1.0, 2.0, 3.0], device=x.device)) @ y.t()


def _autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return x @ y.t()


FUNCTIONS: list[Function] = [_write, _views, _broken, _written_then_viewed, _constants, _autocast]


@pytest.mark.parametrize("backend", ["openxla", "openxla_eval"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_inference(function: Function, backend: str) -> None:
    """Results, and the arguments after two calls and a write to the first result, equal those on the CPU."""
    compiled = torch.compile(function, backend=backend)

    def twice(call: Function, device: str) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(1)
        x, y = (torch.randn(4, 3, generator=generator).to(device) for _ in range(2))
        with torch.no_grad():
            call(x, y)
            results = call(x, y)
            first = results if isinstance(results, torch.Tensor) else results[0]
            if isinstance(first, torch.Tensor):
                first.add_(5)
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), (results, x, y))

    torch.testing.assert_close(twice(compiled, "xla"), twice(function, "cpu"), rtol=1e-2, atol=1e-2)
    assert met.counter_value("DynamoRunAsItIs") is None


@pytest.mark.parametrize("backend", ["openxla", "openxla_eval"])
def test_gradients(backend: str) -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).pow(2).sum()

    x, w = torch.randn(4, 3), torch.randn(3, 2)
    want = torch.func.grad(loss, argnums=(0, 1))(x, w)
    leaves = [t.to("xla").requires_grad_() for t in (x, w)]
    torch.compile(loss, backend=backend)(*leaves).backward()
    for leaf, gradient in zip(leaves, want, strict=True):
        torch.testing.assert_close(leaf.grad.cpu(), gradient, rtol=1e-5, atol=1e-5)


def test_new_random_numbers_in_each_call() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="openxla")
    x = torch.ones(64, device="xla")

    def draw() -> list[float]:
        return compiled(x).tolist()

    torch.manual_seed(3)
    first, second = draw(), draw()
    assert first != second
    torch.manual_seed(3)
    assert [draw(), draw()] == [first, second]


@pytest.mark.filterwarnings("ignore:torch_xla. x.mask. at ")
@pytest.mark.filterwarnings("ignore:torch_xla. torch.compile runs the graph with")
def test_a_graph_that_needs_a_value_runs_as_it_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="openxla")
        x = torch.randn(9)
        for _ in range(2):
            torch.testing.assert_close(compiled(x.to("xla")).cpu(), function(x))
    assert met.counter_value("DynamoRunAsItIs") == 2


def test_dynamic_shapes_are_a_program_for_each() -> None:
    compiled = torch.compile(lambda x: (x * x.shape[0]).sum(), backend="openxla", dynamic=True)
    for length in (3, 4, 3, 5):
        x = torch.arange(float(length))
        assert compiled(x.to("xla")).item() == float((x * length).sum())
    assert met.counter_value("DynamoRunAsItIs") is None


def test_parameters_that_change_are_seen() -> None:
    model = nn.Linear(3, 2).to("xla")
    compiled = torch.compile(model, backend="openxla")
    x = torch.randn(2, 3, device="xla")
    before = compiled(x).tolist()
    with torch.no_grad():
        model.weight.add_(1)
    assert compiled(x).tolist() != before
    torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())


def test_the_bridge_alone() -> None:
    """Called as torch's backend calls it: with arguments like the first ones; results in order, writes done."""
    from torch_xla.core.dynamo_bridge import extract_compiled_graph

    class Graph(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> tuple[Any, ...]:
            x.mul_(n)
            return x + 1, n

    module = torch.fx.symbolic_trace(Graph())
    x = torch.ones(3, device=xm.xla_device())
    call = extract_compiled_graph(module, (x, 2))
    assert [call(x, 2)[0].tolist(), call(x, 3)[0].tolist(), x.tolist()] == [[3.0] * 3, [7.0] * 3, [6.0] * 3]
    assert call(x, 3)[1] == 3
