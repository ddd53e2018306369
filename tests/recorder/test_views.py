"""Views and in-place writes share memory on xla as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_xla
from tests.support.helpers import assert_same, counts, same


def case(*names: str) -> Callable[[Callable[[Tensor], Any]], Callable[[Tensor], Any]]:
    def add(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        for name in names or (function.__name__,):
            CASES[name] = function
        return function

    return add


#: Each takes a 4 x 6 float tensor, and returns the tensors to compare.
CASES: dict[str, Callable[[Tensor], Any]] = {}

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "select": lambda x: x[1],
    "select last": lambda x: x[..., -1],
    "slice": lambda x: x[1:3, ::2],
    "view": lambda x: x.view(3, 8),
    "flatten": lambda x: x.flatten(),
    "reshape": lambda x: x.reshape(2, -1),
    "t": lambda x: x.t(),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "narrow": lambda x: x.narrow(1, 2, 3),
    "diagonal": lambda x: x.diagonal(1),
    "split": lambda x: x.split([1, 3])[1],
    "chunk": lambda x: x.chunk(3, dim=1)[2],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "unbind": lambda x: x.unbind(1)[4],
    "unfold": lambda x: x.unfold(0, 2, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (6, 2), 1),
    "movedim": lambda x: x.movedim(0, 1),
    "view_as": lambda x: x.view_as(torch.empty(6, 4)),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "alias": lambda x: x.view(4, 6),
    "expand of one": lambda x: x[:1].expand(1, 6),
    "real dims": lambda x: x.unflatten(1, (2, 3)),
    "hsplit": lambda x: x.hsplit(2)[1],
    "swapaxes": lambda x: x.swapaxes(0, 1),
}


def _write_to_view(x: Tensor, view: Callable[[Tensor], Tensor]) -> list[Tensor]:
    y = view(x)
    y.mul_(2)
    y += 1
    return [x, y]


def _write_to_base(x: Tensor, view: Callable[[Tensor], Tensor]) -> list[Tensor]:
    y = view(x)
    x.add_(10)
    z = y * 2
    x.zero_()
    return [x, y, z]


@pytest.mark.parametrize("write", [_write_to_view, _write_to_base])
@pytest.mark.parametrize("name", VIEWS)
def test_view(name: str, write: Callable[..., list[Tensor]]) -> None:
    with counts() as moved:
        same(lambda x: write(x, VIEWS[name]), torch.rand(4, 6))
    assert moved.fallbacks == set()


SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda y: y[..., 1:],
    "transpose": lambda y: y.transpose(0, 1),
    "diagonal": lambda y: y.diagonal(),
    "split": lambda y: y.split(1)[0],
    "select": lambda y: y[1],
}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", ["view", "slice", "t", "chunk", "as_strided", "unfold"])
def test_view_of_view(first: str, second: str) -> None:
    def run(x: Tensor) -> list[Tensor]:
        y = VIEWS[first](x)
        z = SECOND[second](y)
        z.neg_()
        y.add_(0.5)
        return [x, y, z]

    same(run, torch.rand(4, 6))


@case()
def aliases(x: Tensor) -> list[Tensor]:
    a, b = x[:3], x[1:]
    a += 1
    b *= 2
    a[0, 0] = 7
    return [x, a, b]


@case()
def view_outlives_base(x: Tensor) -> list[Tensor]:
    y = (x * 1)[1]
    z = y[2:4]
    del x
    z.fill_(9)
    return [y, z]


@case()
def sync_between(x: Tensor) -> list[Tensor]:
    y = x[1:3]
    torch_xla.sync()
    y += 1
    torch_xla.sync()
    z = y.t()
    x.mul_(2)
    torch_xla.sync()
    z[0] = 0
    return [x, y, z]


@case()
def index_put(x: Tensor) -> list[Tensor]:
    rows = torch.tensor([0, 2, 2], device=x.device)
    x[rows] = x[1] * 2
    x.index_put_((rows, rows), torch.ones(3, device=x.device), accumulate=True)
    x[x > 0.5] = -1
    x[:, 1:3][0] = torch.tensor([4.0, 5.0], device=x.device)
    x[None, ..., 0] = 8
    return [x, x[rows, rows]]


@case()
def in_place_shapes(x: Tensor) -> list[Tensor]:
    y = (x * 1).t_()
    z = (x * 2).unsqueeze_(0)
    w = (x[:1] * 3).squeeze_()
    w.add_(1)
    return [y.exp_(), z, w]


@case()
def in_place_shape_of_a_view(x: Tensor) -> list[Tensor]:
    u, v = x[:, 0], x[1:]
    u.unsqueeze_(1).mul_(2)
    v.transpose_(0, 1)
    v[0] = 5  # still a view of x
    return [x, u, v]


@case()
def copies(x: Tensor) -> list[Tensor]:
    x[0].copy_(torch.arange(6))  # of another dtype, from the CPU
    x[1:3].copy_(x[3])  # broadcast
    y = torch.zeros(4, 6, dtype=torch.int32, device=x.device)
    y.copy_(x * 10)
    y.t()[2] = x[:, 1] * 100
    z = torch.zeros(6, device=x.device).copy_(x[2])
    x[2] += 1
    return [x, y, z]


@case()
def sets(x: Tensor) -> list[Tensor]:
    y = torch.zeros(0, device=x.device)
    y.set_(x[1:])
    y[0] = 3
    z = x.clone()
    w = z[1]
    z.data = x[2:]
    z += 1
    w += 1
    return [x, y, z, w]


@case()
def resizes(x: Tensor) -> list[Tensor]:
    y = x[1] * 1
    y.resize_(2)
    z = x * 1
    z.resize_(4, 6).add_(1)
    return [x, y, z]


@case()
def outs(x: Tensor) -> list[Tensor]:
    base = torch.zeros(5, 6, device=x.device)
    torch.add(x, 1, out=base[:4])
    torch.mul(x[0], 2, out=base[4])
    empty = torch.empty(0, device=x.device)
    torch.matmul(x, x.t(), out=empty)
    values, indices = torch.empty(4, device=x.device), torch.empty(4, dtype=torch.int64, device=x.device)
    torch.max(x, 1, out=(values, indices))
    wide = torch.empty(4, 6, dtype=torch.float64, device=x.device)
    torch.sub(x, 1, alpha=2, out=wide)
    return [base, empty, values, indices, wide]


@case()
def self_overlap(x: Tensor) -> list[Tensor]:
    x[1:].add_(x[:-1].clone())
    x.add_(x.view(4, 6))
    x[0].copy_(x[0])
    x[:, :3], x[:, 3:] = x[:, 3:].clone(), x[:, :3].clone()
    return [x]


@case()
def in_place_ops(x: Tensor) -> list[Tensor]:
    y = x[:2]
    y.clamp_(0.2, 0.8).sqrt_().sub_(0.1).div_(3).pow_(2)
    y.masked_fill_(y > 0.01, -1)
    y.lerp_(x[2:], 0.5).addcmul_(y, y, value=2).addcdiv_(x[2:], x[2:] + 1, value=0.3)
    x[3].fill_(2).exp_()
    x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64, device=x.device), 6.0)
    x[2:].index_add_(0, torch.tensor([1, 0], device=x.device), x[:2])
    x.triu_()
    x[:, 1].sigmoid_().neg_()
    return [x, y]


@case()
def dtype_views(x: Tensor) -> list[Tensor]:
    c = torch.view_as_complex(x.view(4, 3, 2).contiguous())
    return [c * 2, torch.view_as_real(c + 1), c.real, c.imag]


@case()
def multi_output_views_written(x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        a, b, c = x.split(2, dim=1)
        a.add_(1)
        for i, row in enumerate(b.unbind()):
            row.mul_(i)
        c.unbind(1)[0].zero_()
    return [x, a, b, c]


@pytest.mark.parametrize("name", CASES)
def test_aliasing(name: str) -> None:
    with counts() as moved:
        same(CASES[name], torch.rand(4, 6))
    assert moved.fallbacks == set()


#: On devices without strides torch rebuilds the gradient of a written view from the op that made the view, and does not
#: update that op when the view changes its shape in place.
STALE_VIEW_FUNCTION = pytest.mark.xfail(strict=True, raises=RuntimeError, reason="torch keeps the view's old op")


@pytest.mark.parametrize(
    "name",
    [
        "aliases",
        "index_put",
        "self_overlap",
        "in_place_shapes",
        pytest.param("in_place_shape_of_a_view", marks=STALE_VIEW_FUNCTION),
    ],
)
def test_aliasing_through_autograd(name: str) -> None:
    def run(x: Tensor) -> Any:
        results = CASES[name](x * 1)
        sum((i + 1) * r.sum() for i, r in enumerate(results)).backward()
        return x.grad

    same(run, torch.rand(4, 6, requires_grad=True), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sources", [("xla", "xla"), ("xla", "cpu"), ("cpu", "xla")])
@pytest.mark.parametrize("source", [torch.int64, torch.float64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.int32, torch.float32, torch.float16])
def test_copy_between_dtypes_and_devices(source: torch.dtype, target: torch.dtype, sources: tuple[str, str]) -> None:
    values = torch.tensor([[0.0, 1, 2.5], [-3, 4, 100]]).to(source)
    x = torch.zeros(3, 2, 3, dtype=target, device=sources[1])
    x[1].copy_(values.to(sources[0]))
    x[2, :, 1:] = values.to(sources[0])[:, 1:]
    expected = torch.zeros(3, 2, 3, dtype=target)
    expected[1].copy_(values)
    expected[2, :, 1:] = values[:, 1:]
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.expand(3, 2),
        lambda x: x[0].expand(4, 2)[1:],
        lambda x: x.expand(3, 2).t(),
        lambda x: x.as_strided((2, 2), (0, 1)),
        lambda x: x[0].unfold(0, 1, 1).expand(2, 2),
        lambda x: x.expand(3, 2)[:, :1],
        lambda x: torch.ones(1, 6, device="xla").as_strided((2, 2), (1, 1)),
        lambda x: torch.ones(6, device="xla").unfold(0, 3, 2),
    ],
)
def test_writing_to_memory_that_overlaps_itself(view: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(1, 2, device="xla")
    y = view(x)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        y.add_(1)
    assert x.tolist() == [[1, 1]] and y.sum().item() == y.numel()


@pytest.mark.parametrize("write", [lambda y: y.fill_(9), lambda y: y.zero_()])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:1].expand(3, 6),
        lambda x: x[:1].expand(3, 6).t(),
        lambda x: x[:, :1].expand(4, 5).unsqueeze(0).expand(2, 4, 5),
        lambda x: x[0].expand_as(x),
    ],
)
def test_filling_an_expanded_tensor(view: Callable[[Tensor], Tensor], write: Callable[[Tensor], Any]) -> None:
    """All elements become equal, so shared memory locations do not matter; other devices allow it, too."""

    def run(x: Tensor) -> list[Tensor]:
        y = view(x)
        write(y)
        return [x, y]

    same(run, torch.rand(4, 6))


RESHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x.reshape(24),
    "t": lambda x: x.t().reshape(24),
    "t t": lambda x: x.t().t().reshape(-1),
    "columns": lambda x: x[:, 1:].reshape(20),
    "rows": lambda x: x[1:].reshape(-1, 2),
    "a column": lambda x: x[:, 1].reshape(2, 2),
    "heads": lambda x: x.view(2, 2, 6).transpose(0, 1).reshape(2, -1),
    "expanded": lambda x: x[:1].expand(4, 6).reshape(-1),
    "flatten": lambda x: x.t().flatten(),
    "flatten rows": lambda x: x[1:].flatten(),
    "flatten some": lambda x: x.view(2, 2, 6).permute(2, 0, 1).flatten(1),
    "flatten a few": lambda x: x.view(2, 2, 6).permute(1, 0, 2).flatten(0, -2),
    "flatten one": lambda x: x.t().flatten(1, 1),
    "reshape_as": lambda x: x.t().reshape_as(x),
    "unbind": lambda x: x.unbind(1)[2].reshape(2, 2),
    "diagonal": lambda x: x.diagonal().reshape(2, 2),
    "empty": lambda x: x[:0].t().reshape(0),
}


@pytest.mark.parametrize("name", RESHAPES)
def test_reshape_copies_where_the_cpu_does(name: str) -> None:
    def run(x: Tensor) -> list[Tensor]:
        y = RESHAPES[name](x)
        y.add_(10)
        return [x, y]

    for _ in range(2):  # the second call uses the cached result
        with counts() as moved:
            same(run, torch.rand(4, 6))
        assert moved.fallbacks == set()

    def gradient(x: Tensor) -> Any:
        return torch.autograd.grad((RESHAPES[name](x * 2) ** 2).sum(), x)

    same(gradient, torch.rand(4, 6, requires_grad=True))


def test_reshape_of_a_copy_under_vmap_and_compile_time_subclasses() -> None:
    same(torch.vmap(lambda x: x.t().reshape(-1) * 2), torch.rand(2, 3, 4))
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert torch.empty(2, 3, device="xla").t().reshape(6).shape == (6,)


def test_in_place_on_a_slice_of_a_parameter() -> None:
    layer = nn.Linear(3, 2).to("xla")
    with torch.no_grad():
        layer.weight[0].fill_(1)
        layer.weight[:, 2] = 5
        nn.init.zeros_(layer.bias[1:])
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    assert layer.weight[0].tolist() == [1, 1, 5] and layer.weight[1, 2].item() == 5 and layer.bias[1].item() == 0
    assert layer.weight.grad.tolist() == [[1] * 3] * 2


def test_flat_buffer_of_parameters() -> None:
    """As in optimizers that flatten parameters: parameters are views of one buffer, and both see each other's
    writes."""
    flat = torch.arange(6.0, device="xla")
    first, second = nn.Parameter(flat[:2]), nn.Parameter(flat[2:].view(2, 2))
    with torch.no_grad():
        flat.mul_(2)
        second[0] += 1
    assert_same([first.detach(), second.detach(), flat], [torch.tensor([0.0, 2]), torch.tensor([[5.0, 7], [8, 10]]),
                                                          torch.tensor([0.0, 2, 5, 7, 8, 10])])  # fmt: skip


def test_deep_chain_of_views_keeps_its_link() -> None:
    x = torch.zeros(2, 2, device="xla")
    y = x
    for _ in range(200):
        y = y.t()
    y[0, 1] = 1
    assert x.tolist() == [[0, 1], [0, 0]]
    torch_xla.sync()
    x[1] = 2
    assert y.tolist() == [[0, 1], [2, 2]]


def test_versions_are_shared_by_views() -> None:
    x = torch.zeros(2, 2, device="xla")
    y = x[0]
    y += 1
    x.t().mul_(2)
    assert x._version == y._version == 2
    assert y._is_view() and y._base is x
    assert x.detach()._version == 2 and x.clone()._version == 0
