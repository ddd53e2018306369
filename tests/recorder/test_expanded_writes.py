"""Writes to expanded tensors and their views have the same effect as on the CPU, or raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

#: The written tensor, with its base memory.
SHOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "column": lambda x: x[:3, None].expand(3, 4),
    "column, turned": lambda x: x[:3, None].expand(3, 4).t(),
    "row": lambda x: x[:4].expand(3, 4),
    "part of rows": lambda x: x.view(3, 4)[1:, 2:3].expand(2, 5),
    "in the middle": lambda x: x[:6].view(2, 1, 3).expand(2, 4, 3),
    "twice": lambda x: x[:3].expand(2, 3).unsqueeze(1).expand(2, 4, 3),
    "one number": lambda x: x[5].broadcast_to(2, 3),
    "of one element": lambda x: x[:3, None].expand(3, 1),
}
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "fill": lambda x: x.fill_(7),
    "zero": lambda x: x.zero_(),
    "add": lambda x: x.add_(1),
    "multiply by itself": lambda x: x.mul_(x),
    "assign all": lambda x: x.__setitem__(Ellipsis, 5.0),
    "copy": lambda x: x.copy_(torch.arange(float(x.numel()), device=x.device).view(x.shape)),
    "first column": lambda x: x.select(-1, 0).fill_(1),
    "add to the last column": lambda x: x.select(-1, -1).add_(1),
    "copy to a column": lambda x: x[..., 1 % x.shape[-1]].copy_(torch.rand(x.shape[:-1], device=x.device) * 0 + 3),
    "first row": lambda x: x[0].fill_(9),
    "add to a row": lambda x: x[0].add_(9),
    "one element": lambda x: x.__setitem__((0,) * x.dim(), 1.0),
    "add to one element": lambda x: x[(-1,) * x.dim()].add_(4),
    "one of a slice": lambda x: x[:, :1].add_(2),
    "fill a slice": lambda x: x[:, :2].fill_(2),
    "scale rows": lambda x: x[:1].mul_(3),
    "assign a tensor": lambda x: x.__setitem__(0, torch.full_like(x[0], 8)),
    "diagonal": lambda x: x.diagonal().add_(1),
    "out=": lambda x: torch.add(torch.ones_like(x), 1, out=x),
    "foreach": lambda x: torch._foreach_add_([x], 1.0),
    "clamp": lambda x: x.clamp_(0, 1),
    "scatter": lambda x: x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), 2.0),
    "random": lambda x: x.uniform_(3, 3),
}


def _write(device: str, shown: str, write: str) -> tuple[str | None, Tensor, Tensor]:
    memory = torch.arange(12.0, device=device)
    x = SHOWN[shown](memory)
    try:
        WRITES[write](x)
    except RuntimeError as error:
        return str(error).split("\n")[0], memory.cpu(), x.cpu()
    return None, memory.cpu(), x.cpu()


@pytest.mark.parametrize("shown", SHOWN)
def test_write(shown: str) -> None:
    refused = 0
    for write in WRITES:
        expected, got = _write("cpu", shown, write), _write("xla", shown, write)
        assert got[0] == expected[0], write
        assert torch.equal(got[1], expected[1]) and torch.equal(got[2], expected[2]), write
        refused += got[0] is not None
    assert (refused > 0) == (shown != "of one element")


#: Writes that the CPU allows, with the reason why xla raises.
DIFFERENT: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "masked_fill": (lambda x: x[:3, None].expand(3, 4).masked_fill_(torch.ones(3, 4, device=x.device) > 0, 1.0),
                    "torch deprecates it on expanded tensors, with a warning"),
    "index": (lambda x: x[:3, None].expand(3, 4).index_fill_(0, torch.tensor([0], device=x.device), 1.0),
              "torch deprecates it on expanded tensors, with a warning"),
    "tril": (lambda x: x[:4].expand(4, 4).tril_(), "unchecked on the CPU, where the result depends on its loops"),
    "windows": (lambda x: x.unfold(0, 3, 1).add_(1), "elements are added to several times, in the order of loops"),
    "as_strided": (lambda x: x.as_strided((3, 2), (1, 1)).mul_(2), "the same"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_rejected_on_xla_only(name: str) -> None:
    x = torch.arange(12.0, device="xla")
    with pytest.raises(RuntimeError, match=r"^unsupported operation: more than one element of the written-to tensor"):
        DIFFERENT[name][0](x)
    assert x.tolist() == list(range(12))


def test_windows_can_be_filled_and_written_separately() -> None:
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device)
        windows = x.unfold(0, 3, 1)
        windows[:2].fill_(7)
        windows[3].add_(torch.arange(3.0, device=device))
        assert x.tolist() == [7, 7, 7, 7, 5, 7]


def test_gradients() -> None:
    grads = []
    for device in ("cpu", "xla"):
        w = torch.ones(3, 1, device=device, requires_grad=True)
        shown = (w * 2).expand(3, 4)
        shown[:, 0].mul_(3)
        (shown * torch.arange(12.0, device=device).view(3, 4)).sum().backward()
        assert w.grad is not None
        grads.append(w.grad.cpu())
    assert torch.equal(*grads)
