"""Graphs that are interpreted: lists of tensors element by element, and the memory that a large step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from tests.support.helpers import counts, run_script
from torch_xla._engine.base.settings import settings
from torch_xla._engine.execution import compile_policy

Lists = Callable[[list[torch.Tensor], list[torch.Tensor]], Any]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(settings.__dict__, "TORCH_XLA_COMPILE_POLICY", "eager")
    yield
    compile_policy.reset()


def _fork(x: list[torch.Tensor], y: list[torch.Tensor]) -> Any:
    """Elements that several others use, one of them never."""
    roots = torch._foreach_sqrt(torch._foreach_abs(x))
    return torch._foreach_add(roots[:2], 1.5)[0], torch._foreach_mul(roots, y), roots[1].sum()


def _chain(x: list[torch.Tensor], y: list[torch.Tensor]) -> Any:
    for _ in range(200):
        x = torch._foreach_lerp(x, y, 0.25)
    return x


def _in_place(x: list[torch.Tensor], y: list[torch.Tensor]) -> Any:
    x = [each.clone() for each in x]
    torch._foreach_mul_(x, [0.5, 2.0, 3.0])
    torch._foreach_addcmul_(x, y, y, 0.3)
    torch._foreach_copy_(y, x)
    return x, y


#: What a foreach op takes: lists, numbers, numbers per element, a tensor for all, a tensor with a number per element.
CALLS: dict[str, Lists] = {
    "list": lambda x, y: torch._foreach_sub(x, y, alpha=2),
    "number": lambda x, y: torch._foreach_pow(x, 3),
    "number first": lambda x, y: torch._foreach_pow(2.5, x),
    "numbers": lambda x, y: torch._foreach_div(x, [1.0, 2.0, 4]),
    "tensor": lambda x, y: torch._foreach_mul(x, y[0].sum()),
    "tensor of numbers": lambda x, y: torch._foreach_addcdiv(x, y, y, torch.arange(3.0, device=x[0].device)),
    "norm": lambda x, y: torch._foreach_norm(x, 2),
    "dtype": lambda x, y: torch._foreach_add([each.to(torch.bfloat16) for each in x], y),
    "getitem of another op": lambda x, y: torch._foreach_mul(list(torch.stack(x[:2]).unbind()), y[:2]),
    "fork": _fork,
    "chain": _chain,
    "in place": _in_place,
    "empty": lambda x, y: torch._foreach_add([x[0][:0], y[0]], 1),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_foreach_ops(call: Lists, interpreted: None) -> None:
    torch.manual_seed(0)
    shapes = [(3,), (2, 3), ()]
    x, y = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    x[1], y[1] = torch.randn(3), torch.randn(3)
    on_xla = [[each.to("xla") for each in values] for values in (x, y)]
    with counts() as counted:
        found = call(*on_xla)
        torch_xla.sync()
    expected = call(x, y)
    names = "InterpretedGraphs", "InterpreterFallbackOps", "InterpreterUnsupportedGraphs"
    assert counted.only(*names) == {"InterpretedGraphs": 1}
    found, expected = torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected)
    torch.testing.assert_close([each.cpu() for each in found], expected, rtol=0, atol=0)


#: Growth of the peak, in MB, over a model of 16 parameters of 8 MB with gradients: 256 MB before. malloc returns each
#: freed value to the system, so that only values in use count.
_STEP = """
    import ctypes, os, re
    from pathlib import Path
    import torch, torch_xla

    def peak():
        return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10

    def make():
        layers = [torch.nn.Parameter(torch.randn(2 << 20, device="xla")) for _ in range(16)]
        for each in layers:
            each.grad = torch.ones_like(each)
        return layers, torch.optim.AdamW(layers, foreach=True)

    ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
    layers, optimizer = make()
    torch_xla.sync(wait=True)
    for step in range(3):
        optimizer.zero_grad(set_to_none=False)
        for each in layers:
            each.grad.add_(step + 0.5)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        optimizer.step()
        torch_xla.sync(wait=True)
        print(peak() - before)
    """


def _measure_growth(policy: str) -> list[int]:
    done = run_script(_STEP, TORCH_XLA_COMPILE_POLICY=policy, TORCH_XLA_KEEP_HEAP="0")
    return [int(line) for line in done.stdout.split()]


def test_memory_of_an_interpreted_optimizer_step() -> None:
    """AdamW on lists: new parameters and state, and temporary values of few parameters at a time, not of all."""
    first, *others = _measure_growth("eager")
    assert 3 * 128 <= first < 3.25 * 128 and max(others) < 2.5 * 128, (first, others)


def test_a_program_overwrites_what_was_interpreted() -> None:
    """XLA copies donated buffers that it has not allocated: parameters, gradients and state, 512 MB."""
    *_, growth = _measure_growth("auto")
    assert growth < 2 * 128
