"""A 30-second test of the device. Needs only torch and torch_xla."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


def test_device() -> None:
    device = xm.xla_device()
    assert device == torch.device("xla:0") == torch_xla.device()
    x = torch.randn(2, 2, device=device)
    assert type(x) is torch.Tensor
    assert x.device == device
    assert xm.is_xla_tensor(x) and not xm.is_xla_tensor(x.cpu())


def test_print() -> None:
    assert repr(torch.arange(3.0, device="xla")) == "tensor([0., 1., 2.], device='xla:0')"


def test_add() -> None:
    x, y = torch.rand(3, 4), torch.rand(4)
    assert torch.equal((x.to("xla") + y.to("xla")).cpu(), x + y)


def test_scalar() -> None:
    assert (torch.ones(4, device="xla") * 3).sum().item() == 12.0


def test_in_place_through_a_view() -> None:
    x = torch.zeros(2, 3, device="xla")
    x.t()[1] += 5
    assert x.tolist() == [[0, 5, 0], [0, 5, 0]]


def test_autograd() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="xla", requires_grad=True)
    (x**3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 12.0, 27.0]


def test_error_leaves_tensors_unchanged() -> None:
    x = torch.ones(2, 3, device="xla") * 2
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match the size of tensor b \(2\)"):
        x + torch.ones(2, 2, device="xla")
    assert x.sum().item() == 12


def test_training() -> None:
    torch.manual_seed(1)
    inputs = torch.randn(64, 8)
    labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, y = inputs.to("xla"), labels.to("xla")
    torch_xla.sync()
    met.clear_all()
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        losses.append(loss.detach())
    first, last = losses[0].item(), losses[-1].item()
    assert last < 0.3 * first
    assert (model(x).argmax(1).cpu() == labels).float().mean() > 0.95
    assert met.counter_value("UncachedSyncTensors") <= 4
    assert met.counter_value("CachedSyncTensors") >= 57
    assert met.counter_value("MarkStep") == 60
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense"]
    report = met.metrics_report()
    for line in (
        "Metric: CompileTime",
        "Metric: ExecuteTime",
        "Counter: MarkStep\n  Value: 60",
        "Counter: xla::linear",
    ):
        assert line in report


@pytest.mark.parametrize("backend", ["eager", "openxla"])
def test_compile(backend: str) -> None:
    """Also with a torch that was built for CUDA, on a machine without a GPU."""
    x = torch.randn(4, 3)
    compiled = torch.compile(lambda a: (a @ a.t()).relu() + 1, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), (x @ x.t()).relu() + 1)
