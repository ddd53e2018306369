"""Common mistakes raise the CPU's exceptions on xla, with the same message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def o(device: str, *shape: int, **options: Any) -> Tensor:
    """Ones."""
    return torch.ones(*shape, device=device, **options)


def z(device: str, *shape: int) -> Tensor:
    """Indices."""
    return torch.zeros(*shape, dtype=torch.int64, device=device)


L = torch.int64


def dbl(d: str) -> None:
    y = o(d, 2, requires_grad=True).square().sum()
    y.backward()
    y.backward()


def ubw(d: str) -> None:
    a, _ = (o(d, 2, 3, requires_grad=True) * 1).unbind(0)
    a.add_(1)


def ngv(d: str) -> None:
    x = o(d, 2, 3, requires_grad=True) * 1
    with torch.no_grad():
        view = x[0]
    view.mul_(o(d, 3, requires_grad=True))


def chg(d: str) -> None:
    y = o(d, 2, requires_grad=True).exp()
    y.add_(1)
    y.sum().backward()


MISTAKES: dict[str, Callable[[str], Any]] = {
    "linear": lambda d: F.linear(o(d, 2, 3), o(d, 5, 4)),
    "linear bias": lambda d: F.linear(o(d, 2, 3), o(d, 5, 3), o(d, 4)),
    "Linear": lambda d: nn.Linear(4, 5, device=d)(o(d, 2, 3)),
    "matmul": lambda d: o(d, 2, 3) @ o(d, 2, 3),
    "matmul 1d": lambda d: o(d, 3) @ o(d, 4),
    "matmul batch": lambda d: o(d, 2, 3, 4) @ o(d, 3, 4, 5),
    "mv": lambda d: torch.mv(o(d, 2, 3), o(d, 2)),
    "bmm": lambda d: torch.bmm(o(d, 2, 3), o(d, 2, 3)),
    "addmm": lambda d: torch.addmm(o(d, 4), o(d, 2, 3), o(d, 3, 5)),
    "matmul dtype": lambda d: o(d, 2, 2) @ o(d, 2, 2, dtype=torch.float64),
    "dot": lambda d: torch.dot(o(d, 2), o(d, 3)),
    "einsum": lambda d: torch.einsum("ij,jk->ik", o(d, 2, 3), o(d, 4, 5)),
    "cat": lambda d: torch.cat([o(d, 2, 3), o(d, 2, 4)]),
    "cat dims": lambda d: torch.cat([o(d, 2, 3), o(d, 2)]),
    "cat empty": lambda d: torch.cat([]),
    "stack": lambda d: torch.stack([o(d, 2), o(d, 3)]),
    "stack empty": lambda d: torch.stack([]),
    "conv ch": lambda d: F.conv2d(o(d, 1, 3, 8, 8), o(d, 4, 2, 3, 3)),
    "conv small": lambda d: F.conv2d(o(d, 1, 3, 2, 2), o(d, 4, 3, 3, 3)),
    "conv dim": lambda d: F.conv2d(o(d, 3, 8), o(d, 4, 3, 3, 3)),
    "conv bias": lambda d: F.conv2d(o(d, 1, 3, 8, 8), o(d, 4, 3, 3, 3), o(d, 3)),
    "Conv dtype": lambda d: nn.Conv2d(3, 4, 3, device=d)(o(d, 1, 3, 8, 8, dtype=torch.float64)),
    "emb dtype": lambda d: F.embedding(o(d, 2), o(d, 5, 3)),
    "ce target": lambda d: F.cross_entropy(o(d, 2, 3), z(d, 3)),
    "ce int": lambda d: F.cross_entropy(o(d, 2, 3), torch.zeros(2, dtype=torch.int32, device=d)),
    "nll": lambda d: F.nll_loss(o(d, 2, 3), z(d, 2, 3)),
    "mse": lambda d: F.mse_loss(o(d, 2, 3), o(d, 4)),
    "bce": lambda d: F.binary_cross_entropy(o(d, 2, 3), o(d, 2)),
    "expand": lambda d: o(d, 2, 3).expand(4, 3),
    "view": lambda d: o(d, 2, 3).view(4),
    "view -1": lambda d: o(d, 2, 3).view(-1, 4),
    "reshape": lambda d: o(d, 2, 3).reshape(5),
    "squeeze": lambda d: o(d, 2, 1).squeeze(4),
    "transpose": lambda d: o(d, 2).transpose(0, 1),
    "permute rep": lambda d: o(d, 2, 3).permute(0, 0),
    "t": lambda d: o(d, 2, 3, 4).t(),
    "chunk": lambda d: o(d, 4).chunk(0),
    "split": lambda d: o(d, 4).split([1, 2]),
    "narrow": lambda d: o(d, 4).narrow(0, 3, 3),
    "select": lambda d: o(d, 2, 3)[2],
    "too many": lambda d: o(d, 2)[0, 0],
    "index bc": lambda d: o(d, 2, 3)[z(d, 2), z(d, 3)],
    "index float": lambda d: o(d, 2)[o(d, 2)],
    "assign": lambda d: o(d, 2, 3).__setitem__(0, o(d, 2)),
    "gather dims": lambda d: o(d, 2, 3).gather(1, z(d, 3)),
    "gather size": lambda d: o(d, 2, 3).gather(1, z(d, 3, 1)),
    "gather dtype": lambda d: o(d, 2, 3).gather(1, o(d, 2, 1)),
    "scatter": lambda d: o(d, 2, 3).scatter(0, z(d, 3, 4), o(d, 3, 4)),
    "scatter dtype": lambda d: o(d, 2, 3).scatter(0, z(d, 1, 1), o(d, 1, 1, dtype=torch.float64)),
    "index_select": lambda d: o(d, 2, 3).index_select(0, z(d, 2, 2)),
    "index_add": lambda d: o(d, 2, 3).index_add(0, z(d, 2), o(d, 1, 3)),
    "masked_fill": lambda d: o(d, 2, 3).masked_fill(o(d, 2, 3), 1),
    "masked_fill shape": lambda d: o(d, 2, 3).masked_fill(o(d, 2, dtype=torch.bool), 1),
    "add": lambda d: o(d, 2, 3) + o(d, 2, 4),
    "add_ grow": lambda d: o(d, 3).add_(o(d, 2, 3)),
    "add_ dtype": lambda d: o(d, 2, dtype=L).add_(1.5),
    "and float": lambda d: o(d, 2) & o(d, 2),
    "bool sub": lambda d: o(d, 2, dtype=torch.bool) - o(d, 2, dtype=torch.bool),
    "where": lambda d: torch.where(o(d, 2), o(d, 2), o(d, 2)),
    "mean int": lambda d: o(d, 2, dtype=L).mean(),
    "sum dim": lambda d: o(d, 2, 3).sum(2),
    "max empty": lambda d: o(d, 0).max(),
    "argmax empty": lambda d: o(d, 0).argmax(),
    "topk": lambda d: o(d, 3).topk(4),
    "item": lambda d: o(d, 2).item(),
    "bool": lambda d: bool(o(d, 2)),
    "zeros neg": lambda d: torch.zeros(-1, device=d),
    "pad": lambda d: F.pad(o(d, 2, 3), (1,)),
    "pool": lambda d: F.max_pool2d(o(d, 1, 1, 2, 2), 3),
    "ln": lambda d: F.layer_norm(o(d, 2, 3), [4]),
    "bn": lambda d: F.batch_norm(o(d, 2, 3), o(d, 4), o(d, 4)),
    "lstm": lambda d: nn.LSTM(3, 4, device=d)(o(d, 2, 5)),
    "sdpa": lambda d: F.scaled_dot_product_attention(o(d, 1, 2, 3, 4), o(d, 1, 2, 3, 5), o(d, 1, 2, 3, 5)),
    "onehot": lambda d: F.one_hot(o(d, 2)),
    "bernoulli": lambda d: o(d, 2).bernoulli_(2.0),
    "leaf": lambda d: o(d, 2, requires_grad=True).add_(1),
    "leaf view": lambda d: o(d, 2, requires_grad=True)[0].add_(1),
    "int grad": lambda d: o(d, 2, dtype=L).requires_grad_(),
    "nonscalar": lambda d: (o(d, 2, requires_grad=True) * 2).backward(),
    "no grad": lambda d: o(d, 2).sum().backward(),
    "grad shape": lambda d: (o(d, 2, requires_grad=True) * 2).backward(o(d, 3)),
    "set grad": lambda d: setattr(o(d, 2, requires_grad=True), "grad", o(d, 3)),
    "double": lambda d: dbl(d),
    "unused": lambda d: torch.autograd.grad((o(d, 2, requires_grad=True) * 2).sum(), [o(d, 2, requires_grad=True)]),
    "unbind write": lambda d: ubw(d),
    "no_grad view": lambda d: ngv(d),
    "load size": lambda d: nn.Linear(2, 3, device=d).load_state_dict({"weight": o(d, 3, 3), "bias": o(d, 3)}),
    "opt nonleaf": lambda d: torch.optim.SGD([o(d, 2, requires_grad=True) * 2], lr=1),
    "out shape dtype": lambda d: torch.add(o(d, 2), 1.5, out=o(d, 2, dtype=L)),
    "out grad": lambda d: torch.add(o(d, 2, requires_grad=True), 1, out=o(d, 2)),
    "copy_ shape": lambda d: o(d, 2).copy_(o(d, 3)),
    "view dtype": lambda d: o(d, 3).view(torch.float64),
    "sum into bools": lambda d: o(d, 2, 3).cumsum(0, dtype=torch.bool),
    "sum into bools, out": lambda d: torch.cumprod(o(d, 2, 3), 0, out=o(d, 2, 3, dtype=torch.bool)),
    "sum of complex numbers": lambda d: torch.nansum(o(d, 2, 3), 0, dtype=torch.complex64),
    "sort out": lambda d: torch.sort(o(d, 2, 3), out=(o(d, 2, 3, dtype=torch.float64), z(d, 2, 3))),
    "sort out, long": lambda d: torch.sort(o(d, 100, 99), out=(o(d, 100, 99).double(), z(d, 100, 99))),
    "svdvals out": lambda d: torch.linalg.svdvals(o(d, 3, 3), out=o(d, 3, dtype=torch.float64)),
    "lu_unpack out": lambda d: torch.lu_unpack(o(d, 2, 2), z(d, 2).int(), out=(o(d, 2, 2, dtype=torch.float64),) * 3),
    "multinomial of many": lambda d: torch.multinomial(o(d, 1).expand(2**24 + 1), 1),
    "multinomial out": lambda d: torch.multinomial(o(d, 3), 1, out=o(d, 1, dtype=torch.int32)),
}


def _over(d: str, write: Callable[[Tensor, Tensor], Any]) -> Any:
    """The written tensor starts one element after the operand, in the same memory."""
    x = torch.arange(6.0, device=d)
    return write(x[1:], x[:-1])


MISTAKES |= {
    "add_ over an operand": lambda d: _over(d, lambda x, y: x.add_(y)),
    "add_ over an operand, backwards": lambda d: _over(d, lambda x, y: y.add_(x)),
    "clamp_ over an operand": lambda d: _over(d, lambda x, y: x.clamp_(y, o(d, 5))),
    "addcmul_ over an operand": lambda d: _over(d, lambda x, y: x.addcmul_(o(d, 5), y)),
    "lerp_ over an operand": lambda d: _over(d, lambda x, y: x.lerp_(y, 0.5)),
    "eq_ over an operand": lambda d: _over(d, lambda x, y: x.view(5, 1).eq_(y.view(5, 1))),
    "index_add_ over an operand": lambda d: _over(d, lambda x, y: x.index_add_(0, z(d, 5), y)),
    "neg out over an operand": lambda d: _over(d, lambda x, y: torch.neg(x, out=y)),
    "an op of the CPU, out over an operand": lambda d: _over(d, lambda x, y: torch.special.airy_ai(x, out=y)),
}


def _error(call: Callable[[str], Any], device: str) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(device)
    return caught.type, str(caught.value).split("\n")[0].replace("xla:0", "cpu")


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_raises_cpu_error(name: str) -> None:
    assert _error(MISTAKES[name], "xla") == _error(MISTAKES[name], "cpu")


def test_in_place_change_before_backward() -> None:
    """The message contains the type of the tensor, which differs."""
    kind, message = _error(chg, "cpu")
    assert _error(chg, "xla") == (kind, message.replace("torch.FloatTensor", "XLAFloatType"))


#: Cases that raise on the CPU but not on xla, with the result and the reason.
LENIENT: dict[str, tuple[Callable[[str], Any], list[float], str]] = {
    "histc": (lambda d: torch.tensor([3, 1, 1, 0, 9], device=d, dtype=torch.int32).histc(4, 0, 3), [1.0, 2.0, 0.0, 1.0],
              "integers, as on other devices: libraries count tokens per expert with it"),
    "view": (lambda d: o(d, 2, 3).t().view(6), [1.0] * 6, "xla tensors have no strides that could prevent it"),
}  # fmt: skip


def test_allowed_overlap_of_output_and_operand() -> None:
    """Full overlap, or no common element: no error, and the CPU's values."""

    def write(d: str) -> list[Tensor]:
        x = torch.arange(6.0, device=d)
        whole = x.clone()
        whole.view(2, 3).add_(whole.detach().view(2, 3))
        x[:3].add_(x[3:]).mul_(x[:3])
        drawn = torch.bernoulli(o(d, 3), out=z(d, 3))
        return [x.cpu(), whole.cpu(), drawn.cpu()]

    torch.testing.assert_close(write("xla"), write("cpu"))


#: Values out of range: raised when the result is read.
VALUES: dict[str, Callable[[str], Any]] = {
    "index": lambda d: torch.arange(3.0, device=d)[torch.tensor([5, -7], device=d)],
    "gather": lambda d: torch.arange(3.0, device=d).gather(0, torch.tensor([5, -7], device=d)),
    "embedding": lambda d: F.embedding(torch.tensor([5], device=d), torch.arange(3.0, device=d)[:, None]),
    "scatter": lambda d: o(d, 3).scatter(0, torch.tensor([5, 1], device=d), 9.0),
    "index_add": lambda d: o(d, 3).index_add(0, torch.tensor([5], device=d), o(d, 1)),
    "cross_entropy": lambda d: F.cross_entropy(o(d, 1, 3), torch.tensor([5], device=d)),
}


@pytest.mark.parametrize("name", VALUES)
def test_errors_of_values(name: str) -> None:
    kind, message = _error(VALUES[name], "cpu")
    found, text = _error(lambda device: VALUES[name](device).cpu(), "xla")
    assert (found, text.splitlines()[0]) == (kind, message.splitlines()[0])


@pytest.mark.parametrize("name", LENIENT)
def test_errors_of_the_cpu_only(name: str) -> None:
    call, expected, _ = LENIENT[name]
    with pytest.raises((RuntimeError, IndexError)):
        call("cpu")
    assert call("xla").flatten().tolist() == expected
