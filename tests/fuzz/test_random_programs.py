"""Random programs of views, writes in place, casts and reads do on xla what they do on the CPU.

A program is a list of steps on a pool of tensors that starts with one 4 x 6 tensor; most members of the pool end up
as views of views of each other. All numbers are small integers, so that every result is exact and compared bitwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

import torch_xla

POOL = 6

# Views. ``k`` is a number drawn for the step; a view that does not fit the shape returns the tensor itself.
VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "select": lambda x, k: x.select(k % x.dim(), k % x.shape[k % x.dim()]) if x.dim() > 1 else x,
    "slice": lambda x, k: x.narrow(k % x.dim(), 0, max(1, x.shape[k % x.dim()] - 1)),
    "tail": lambda x, k: x[1:] if x.shape[0] > 1 else x,
    "stride": lambda x, k: x[..., ::2],
    "transpose": lambda x, k: x.transpose(0, -1),
    "unsqueeze": lambda x, k: x.unsqueeze(k % 2) if x.dim() < 3 else x,
    "diagonal": lambda x, k: x.diagonal(0, 0, 1) if x.dim() == 2 else x,
    "split": lambda x, k: x.split(2, -1)[k % len(x.split(2, -1))],
    "unbind": lambda x, k: x.unbind()[k % x.shape[0]] if x.dim() > 1 else x,
    "expand": lambda x, k: x[:1].expand(2, *x.shape[1:]),
    "detach": lambda x, k: x.detach(),
    "move": lambda x, k: x.movedim(k % x.dim(), 0),
    "squeeze": lambda x, k: x.squeeze(k % x.dim()) if x.dim() > 1 else x,
    "unfold": lambda x, k: x.unfold(-1, 2, 2) if x.dim() < 3 and x.shape[-1] > 1 else x,
    "tensor split": lambda x, k: x.tensor_split(2, 0)[0],
    "as rows": lambda x, k: x.unflatten(-1, (2, x.shape[-1] // 2)) if x.dim() < 3 and x.shape[-1] % 2 == 0 else x,
}


def _mask(x: Tensor, k: int) -> Tensor:
    return x > k


# Writes. Not to an expanded tensor or a view of one: the CPU rejects some of those, xla all.
WRITES: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "add number": lambda x, y, k: x.add_(k),
    "mul number": lambda x, y, k: x.mul_(k % 3),
    "neg": lambda x, y, k: x.neg_(),
    "fill": lambda x, y, k: x.fill_(k),
    "zero": lambda x, y, k: x.zero_(),
    "add": lambda x, y, k: x.add_(_like(y, x)),
    "copy": lambda x, y, k: x.copy_(_like(y, x)),
    "maximum": lambda x, y, k: torch.maximum(x.clone(), _like(y, x), out=x),
    "set slice": lambda x, y, k: x.__setitem__(slice(0, 1), k),
    "set last": lambda x, y, k: x.__setitem__((..., -1), _like(y, x)[..., -1]),
    "masked fill": lambda x, y, k: x.masked_fill_(_mask(x, k), 1),
    "index fill": lambda x, y, k: x.index_fill_(0, torch.tensor([k % x.shape[0]], device=x.device), 2),
    "clamp": lambda x, y, k: x.clamp_(-50, 50),
    "set where": lambda x, y, k: x.__setitem__(_mask(x, k), 2),
    "set rows": lambda x, y, k: x.__setitem__(torch.tensor([k % x.shape[0]], device=x.device), _like(y, x)[:1]),
    "add to rows": lambda x, y, k: x.index_add_(0, torch.zeros(1, dtype=torch.long, device=x.device), _like(y, x)[:1]),
    "subtract from a slice": lambda x, y, k: x[..., :1].sub_(k),
    "cumulate": lambda x, y, k: x.cumsum_(k % x.dim()),
    "add twice": lambda x, y, k: torch._foreach_add_([x, x], k),
    "transpose in place": lambda x, y, k: x.transpose_(0, -1),
    "unsqueeze in place": lambda x, y, k: x.unsqueeze_(0) if x.dim() < 3 else x,
}

# New tensors.
MAKES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "clone": lambda x, k: x.clone(),
    "plus": lambda x, k: x + k,
    "to int": lambda x, k: x.to(torch.int32),
    "to double": lambda x, k: x.to(torch.float64),
    "to float": lambda x, k: x.to(torch.float32),
    "sum": lambda x, k: x.sum(-1, keepdim=True).clamp(-100, 100),
    "flip": lambda x, k: x.flip(0),
    "cat": lambda x, k: torch.cat([x, x])[: x.shape[0]],
}

SYNCS = ("sync", "read", "item", "drop")


def _like(y: Tensor, x: Tensor) -> Tensor:
    """Separate values of y in the shape and dtype of x."""
    count = x.numel()
    flat = y.clone(memory_format=torch.contiguous_format).reshape(-1)
    flat = torch.cat([flat] * (count // flat.numel() + 1))[:count]
    return flat.reshape(x.shape).to(x.dtype)


class Machine:
    """One pool of tensors on one device."""

    def __init__(self, device: str) -> None:
        self.pool = [torch.arange(24.0).reshape(4, 6).sub(12).to(device)]
        self.expanded = [False]

    def step(self, name: str, i: int, j: int, k: int) -> Any:
        """Does one step; what it returns must be equal on all devices."""
        x, y = self.pool[i % len(self.pool)], self.pool[j % len(self.pool)]
        if name in VIEWS:
            return self.keep(VIEWS[name](x, k), j, name == "expand" or self.expanded[i % len(self.pool)])
        if name in MAKES:
            made = MAKES[name](x, k)
            return self.keep(
                made, j, made is x and self.expanded[i % len(self.pool)]
            )  # to() may give the tensor itself
        if name in WRITES and not self.expanded[i % len(self.pool)]:
            WRITES[name](x, y, k)
            x.clamp_(-1000, 1000)  # numbers stay exact in every dtype
        elif name == "sync":
            torch_xla.sync()
        elif name == "drop" and len(self.pool) > 1:
            at = i % len(self.pool)
            del self.pool[at], self.expanded[at]
        return x.tolist() if name == "read" else x.reshape(-1)[0].item() if name == "item" else None

    def keep(self, x: Tensor, j: int, expanded: bool) -> tuple[Any, ...]:
        if len(self.pool) < POOL:
            self.pool.append(x)
            self.expanded.append(expanded)
        else:
            self.pool[j % POOL], self.expanded[j % POOL] = x, expanded
        return tuple(x.shape), x.dtype

    def values(self) -> list[Tensor]:
        return [x.cpu() for x in self.pool]


def run(program: list[tuple[str, int, int, int]]) -> None:
    """Asserts that both devices agree after every step on what it returned, and at the end on all tensors."""
    cpu, xla = Machine("cpu"), Machine("xla")
    for number, step in enumerate(program):
        expected, got = cpu.step(*step), xla.step(*step)
        assert got == expected, f"step {number} {step}: {got} on xla, {expected} on the CPU"
    torch_xla.sync()
    for number, (got, expected) in enumerate(zip(xla.values(), cpu.values(), strict=True)):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected), f"tensor {number}: {got} on xla, {expected} on the CPU"


NUMBERS = st.integers(0, 5)
#: Views and writes are what it is about; syncs are rarer, as each may compile a program.
NAMES = st.one_of(
    st.sampled_from([*VIEWS]), st.sampled_from([*WRITES]), st.sampled_from([*VIEWS, *WRITES, *MAKES, *SYNCS])
)
PROGRAMS = st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=12)
LONG = st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS), min_size=5, max_size=40)
OPTIONS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@settings(max_examples=80, derandomize=True, phases=(Phase.generate, Phase.shrink), **OPTIONS)
@given(PROGRAMS)
def test_random_programs(program: list[tuple[str, int, int, int]]) -> None:
    run(program)


#: 20 x 1,000: one seed a shard, so that a failure comes back and pytest-xdist can share them out.
@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(20))
def test_many_programs(shard: int) -> None:
    programs = LONG if shard % 5 == 4 else PROGRAMS
    options = settings(max_examples=1000, phases=(Phase.generate, Phase.shrink), **OPTIONS)
    seed(shard)(options(given(programs)(run)))()


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "expand"])
@pytest.mark.parametrize("write", ["add number", "copy", "set last"])
def test_each_view_written_through_and_from_behind(view: str, write: str) -> None:
    first = [(view, 0, 0, 1), (write, 1, 0, 3), ("neg", 0, 0, 0), ("transpose", 1, 0, 0)]
    run([*first, (write, 2, 1, 2), ("sync", 0, 0, 0), ("add number", 0, 0, 1)])


#: Programs that once went wrong.
FOUND = [
    # XLA's CPU compiler fuses a dynamic-update-slice in place although the fusion also reads what it overwrites.
    [("as rows", 0, 0, 0), ("select", 1, 0, 1), ("set last", 2, 0, 0), ("select", 0, 0, 0), ("add number", 0, 0, 0)],
    # The same of a scatter of one index, whose values are read from what it writes to.
    [("select", 0, 0, 0), ("select", 0, 0, 0), ("unfold", 1, 0, 0), ("expand", 1, 0, 0), ("select", 0, 0, 0),
     ("add number", 1, 0, 0), ("add to rows", 3, 4, 0)],
]  # fmt: skip


@pytest.mark.parametrize("program", FOUND)
def test_found(program: list[tuple[str, int, int, int]]) -> None:
    run(program)
