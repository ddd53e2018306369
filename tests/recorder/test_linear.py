"""linear as one operation: values, gradients, recorded ops and saved tensors; and the cases that use torch's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_xla
from tests.support.helpers import same
from torch_xla._engine import recorder
from torch_xla._engine.graph import graph_spec


def ops(*tensors: Tensor | None) -> Counter[str]:
    """Return the pending operations of these tensors."""
    nodes = recorder.bindings().nodes_of([t for t in tensors if t is not None])
    return Counter(node.op for node in graph_spec.describe_graph(recorder.bindings().collect_only(0, nodes)).nodes)


def parts(*lead: int, bias: bool = True, dtype: torch.dtype = torch.float32, grad: bool = True) -> list[Tensor | None]:
    """Input (*lead, 4), weight (5, 4) and bias (5,), with values, on the CPU."""
    sizes = [(*lead, 4), (5, 4), *([(5,)] if bias else [])]
    made: list[Tensor | None] = [torch.randn(size, dtype=dtype).requires_grad_(grad) for size in sizes]
    return made + [None] * (3 - len(made))


def on_xla(values: list[Tensor | None]) -> list[Tensor | None]:
    moved = [v if v is None else v.detach().to("xla").requires_grad_(v.requires_grad) for v in values]
    torch_xla.sync()
    return moved


def trained(x: Tensor, w: Tensor, b: Tensor | None) -> list[Tensor]:
    y = F.linear(x, w, b)
    y.square().sum().backward()
    return [y.detach(), *(t.grad for t in (x, w, b) if t is not None and t.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (0, 3), (3, 0)], ids=str)
def test_values_and_gradients(lead: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-5
    same(trained, *parts(*lead, bias=bias, dtype=dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ["weight of one row", "no inputs", "no outputs", "a weight vector", "integers"])
def test_unusual_shapes(case: str) -> None:
    x, w = {
        "weight of one row": (torch.randn(3, 4), torch.randn(1, 4)),
        "no inputs": (torch.randn(3, 0), torch.randn(5, 0)),
        "no outputs": (torch.randn(3, 4), torch.randn(0, 4)),
        "a weight vector": (torch.randn(3, 4), torch.randn(4)),
        "integers": (torch.arange(6).reshape(2, 3), torch.arange(12).reshape(4, 3)),
    }[case]
    same(F.linear, x, w)


@pytest.mark.parametrize("lead", [(3,), (2, 3)], ids=str)
def test_recorded_operations(lead: tuple[int, ...]) -> None:
    """One operation, and in backward three matmuls and reductions."""
    x, w, b = on_xla(parts(*lead))
    assert x is not None and w is not None
    y = F.linear(x, w, b)
    assert ops(y) == {"aten::linear": 1}
    assert type(y.grad_fn).__name__ == "LinearBackward0"
    (y * torch.ones_like(y)).sum().backward()
    found = ops(x.grad, w.grad, b.grad if b is not None else None)
    views = {"aten::view": 3} if len(lead) > 1 else {}  # of the gradient, of the input, and back
    assert {
        name: found[name] for name in ("aten::mm", "aten::t", "aten::sum.dim_IntList", "aten::view") if found[name]
    } == {
        "aten::mm": 2,
        "aten::t": 1,
        "aten::sum.dim_IntList": 1,
        **views,
    }


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)], ids=str)
def test_tensors_saved_for_backward(wanted: tuple[bool, bool]) -> None:
    """The input if the weight requires grad, and the weight if the input does."""
    x, w, b = on_xla(parts(3, grad=False))
    assert x is not None and w is not None and b is not None
    x.requires_grad_(wanted[0]), w.requires_grad_(wanted[1])
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = F.linear(x, w, b)
    assert [t.shape for t in kept] == [t.shape for t, other in ((x, wanted[1]), (w, wanted[0])) if other]
    y.sum().backward()
    assert (x.grad is not None, w.grad is not None) == wanted
    recorded = ops(x.grad, w.grad)
    assert recorded["aten::mm"] == sum(wanted)


def test_without_gradients() -> None:
    values = parts(2, 3)
    x, w, b = on_xla(values)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = F.linear(x, w, b)
            assert not y.requires_grad and y.is_inference() == (mode is torch.inference_mode)
            assert ops(y) == {"aten::linear": 1}
            torch.testing.assert_close(y.cpu(), F.linear(*values))


def test_the_gradient_of_a_gradient() -> None:
    def twice(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor | None]:
        (of_x,) = torch.autograd.grad(F.linear(x, w, b).pow(3).sum(), x, create_graph=True)
        of_x.square().sum().backward()
        return [of_x.detach(), x.grad, w.grad, b.grad]

    same(twice, *parts(2, 3), rtol=1e-4, atol=1e-3)


def test_backward_twice_and_changes_in_between() -> None:
    """torch's errors for a freed graph and for a modified saved tensor."""
    x, w, b = on_xla(parts(3))
    y = F.linear(x, w, b).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    y = F.linear(x, w, b).sum()
    with torch.no_grad():
        w.mul_(2)  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


MISTAKES: dict[str, Callable[[str], object]] = {
    "sizes": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(5, 4, device=d)),
    "sizes of a bias": lambda d: F.linear(
        torch.ones(2, 4, device=d), torch.ones(5, 4, device=d), torch.ones(3, device=d)
    ),
    "dtypes": lambda d: F.linear(torch.ones(2, 4, device=d), torch.ones(5, 4, device=d, dtype=torch.float64)),
    "a number": lambda d: F.linear(torch.ones((), device=d), torch.ones(5, 4, device=d)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_errors_match_torch(mistake: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        MISTAKES[mistake]("cpu")
    with pytest.raises(RuntimeError) as found:
        MISTAKES[mistake]("xla")
    assert str(found.value).partition("\n")[0] == str(expected.value).partition("\n")[0]


def test_another_device() -> None:
    x, _, _ = on_xla(parts(3))
    with pytest.raises(RuntimeError, match=r"not an XLA tensor: torch\.FloatTensor"):
        F.linear(x, torch.ones(5, 4))  # type: ignore[arg-type]


class Seen(TorchDispatchMode):
    """Records the operations that a mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def test_modes_see_the_decomposition() -> None:
    """As on other devices, so that modes that select by operation (selective checkpoints, FLOP counters) work."""
    x, w, b = on_xla(parts(3))
    with Seen() as forward:
        F.linear(x, w, b)
    assert forward.names["aten::mm"] + forward.names["aten::addmm"] == 1 and not forward.names["aten::linear"]
    y = F.linear(x, w, b).sum()
    with Seen() as backward:
        y.backward()
    assert backward.names["aten::mm"] == 2
    with FlopCounterMode(display=False) as counted:
        F.linear(x, w, b).sum().backward()
    assert counted.get_total_flops() == 3 * 2 * 3 * 4 * 5


class Wrapped(Tensor):
    """A tensor subclass that records its operations."""

    seen: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen[func._schema.name] += 1
        plain = lambda t: t.as_subclass(Tensor) if isinstance(t, Wrapped) else t
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            return func(*map(plain, args), **(kwargs or {}))


def test_subclasses_see_the_decomposition() -> None:
    x, w, b = on_xla(parts(3, grad=False))
    assert x is not None
    F.linear(torch.Tensor._make_subclass(Wrapped, x), w, b)
    assert Wrapped.seen["aten::linear"] == 0 and Wrapped.seen.total() >= 1


def test_transforms() -> None:
    """torch.func and forward-mode derivatives."""
    x, w, b = parts(2, 3, grad=False)
    assert w is not None and b is not None
    loss = lambda x, w, b: F.linear(x, w, b).pow(2).sum()
    same(lambda *a: torch.func.grad(loss, (0, 1, 2))(*a), x, w, b, rtol=1e-4, atol=1e-4)
    same(lambda *a: torch.func.vmap(F.linear, (0, None, None))(*a), x, w, b, rtol=1e-4, atol=1e-5)
    same(lambda *a: torch.func.vmap(torch.func.grad(loss), (0, None, None))(*a), x, w, b, rtol=1e-4, atol=1e-4)
    same(lambda *a: torch.func.jvp(F.linear, a, tuple(torch.ones_like(t) for t in a))[1], x, w, b, rtol=1e-4, atol=1e-5)
    same(lambda *a: torch.func.jacrev(F.linear, 1)(*a), x, w, b, rtol=1e-4, atol=1e-5)

    def tangent(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with forward_ad.dual_level():
            y = F.linear(forward_ad.make_dual(x, torch.ones_like(x)), w, b)
            return forward_ad.unpack_dual(y).tangent

    same(tangent, x, w, b, rtol=1e-4, atol=1e-5)


def test_many_gradients_at_once() -> None:
    def batched(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = F.linear(x, w, b)
        return torch.autograd.grad(y, (x, w, b), torch.stack([torch.ones_like(y), y.detach()]), is_grads_batched=True)

    same(batched, *parts(2, 3), rtol=1e-4, atol=1e-4)


@contextmanager
def compiled_backward() -> Iterator[None]:
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(torch.compile(backend="eager")):
        yield


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch reads it itself
@pytest.mark.parametrize("frozen", [None, "weight", "input"])
def test_compiled_autograd(frozen: str | None) -> None:
    """A backward pass that torch traces."""
    found = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = nn.Linear(4, 5)
        layer.weight.requires_grad_(frozen != "weight")
        layer.to(device)
        x = torch.randn(3, 4).to(device).requires_grad_(frozen != "input")
        with compiled_backward():
            layer(x).square().sum().backward()
        found.append([t.grad if t.grad is None else t.grad.cpu() for t in (x, layer.weight, layer.bias)])
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_autocast_and_checkpoints() -> None:
    def run(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor | None]:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = checkpoint(lambda v: F.linear(v, w, b).relu(), x, use_reentrant=False)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        return [y.detach().float(), x.grad, w.grad, b.grad]

    same(run, *parts(2, 3), rtol=5e-2, atol=5e-2)


def test_direct_call_of_linear_backward() -> None:
    """As in torch: any sizes, without a prior check."""
    call = lambda x, g, w: torch.ops.aten.linear_backward(x.to("xla"), g.to("xla"), w.to("xla"), [True, True, True])
    x, g, w = torch.randn(2, 3, 4), torch.randn(2, 3, 5), torch.randn(5, 4)
    expected = (g @ w, g.reshape(-1, 5).T @ x.reshape(-1, 4), g.sum((0, 1)))
    for got, want in zip(call(x, g, w), expected, strict=True):
        torch.testing.assert_close(got.cpu(), want)
    for sizes in [((), (), ()), ((0, 4), (0, 5), (5, 4)), ((3, 4), (3, 6), (5, 4)), ((3, 0), (3, 5), (5, 0))]:
        try:
            found = call(*(torch.ones(size) for size in sizes))
        except (RuntimeError, IndexError):
            continue
        assert sizes[0] != () and [tuple(t.shape) for t in found] == [sizes[0], sizes[2], (5,)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("product", [lambda a, b: (a @ b).mT, lambda a, b: a.mT @ b.mT, lambda a, b: (a @ b).mT + a])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_transposed_products_of_16_bits_add_up_in_float32(
    lead: tuple[int, ...], product: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    """Only the result is rounded. In 16 bits, the sums of 256 products have eight times this error."""
    a, b = torch.randn(*lead, 256, 256).to(dtype), torch.randn(*lead, 256, 256).to(dtype)
    exact = product(a.double(), b.double())
    found = product(a.to("xla"), b.to("xla")).cpu().double()
    error = (found - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < 0.5 * torch.finfo(dtype).eps, error
