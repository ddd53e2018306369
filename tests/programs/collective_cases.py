"""Collectives compared with their definitions on every rank, in processes that test_collectives.py spawns.

Every rank makes the data of all ranks from one seed, so each knows what it should receive.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm

FLOATS = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
Case = tuple[str, Callable[[], Any], Any]


class Replica:
    """The rank, and the data of all ranks."""

    def __init__(self, seed: int = 0) -> None:
        self.world, self.rank = xm.xrt_world_size(), xm.get_ordinal()
        self.generator = torch.Generator().manual_seed(seed)

    def data(self, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Return the CPU tensor of every rank. Values are small integers: sums are exact in any dtype and order."""
        values = torch.randint(-3, 4, (self.world, *shape), generator=self.generator)
        return list(values.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else values.to(dtype))

    def mine(self, data: list[torch.Tensor]) -> torch.Tensor:
        return data[self.rank].to("xla")

    def group(self, groups: list[list[int]] | None) -> list[int]:
        """Return the ranks of this rank's group."""
        return next(g for g in groups if self.rank in g) if groups else list(range(self.world))


def _groups(world: int) -> list[list[list[int]] | None]:
    if world == 1:
        return [None]
    halves = [list(range(world // 2)), list(range(world // 2, world))]
    return [None, halves, [list(range(0, world, 2)), list(range(1, world, 2))]]


_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add, "mul": operator.mul, "min": torch.minimum, "max": torch.maximum,
    "and": operator.and_, "or": operator.or_,
}  # fmt: skip


def reduced(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(_REDUCTIONS[op], parts)


def all_reduce(me: Replica) -> Iterator[Case]:
    for op in _REDUCTIONS:
        for dtype in (*FLOATS, *INTEGERS) if op not in ("and", "or") else INTEGERS:
            data = me.data(3, 2, dtype=dtype)
            x = me.mine(data)
            yield f"all_reduce {op} {dtype}", functools.partial(xm.all_reduce, op, x), reduced(op, data)
    for groups in _groups(me.world):
        data = me.data(5)
        scale = 0.5 if me.world > 1 else 1.0
        expected = scale * reduced("sum", [data[rank] for rank in me.group(groups)])
        yield f"all_reduce {groups}", functools.partial(xm.all_reduce, "sum", me.mine(data), 0.5, groups), expected
    one, two = me.data(2), me.data(2, 2, dtype=torch.int64)
    mine = [me.mine(one), me.mine(two)]
    view = mine[1][0]
    total = reduced("max", two)
    yield "all_reduce in place", lambda: [*xm.all_reduce("max", mine), view], [reduced("max", one), total, total[0]]


def all_gather(me: Replica) -> Iterator[Case]:
    for groups in _groups(me.world):
        for dim in (0, 1, -1):
            data = me.data(2, 3)
            expected = torch.cat([data[rank] for rank in me.group(groups)], dim)
            yield f"all_gather {dim} {groups}", functools.partial(xm.all_gather, me.mine(data), dim, groups), expected
    for dtype in (*FLOATS[1:], *INTEGERS):
        data = me.data(4, dtype=dtype)
        yield f"all_gather {dtype}", functools.partial(xm.all_gather, me.mine(data)), torch.cat(data)


def reduce_scatter(me: Replica) -> Iterator[Case]:
    for groups in _groups(me.world):
        group = me.group(groups)
        for op in ("sum", "max"):
            data = me.data(3, 4 * len(group))
            full = 0.5 * reduced(op, [data[rank] for rank in group])
            expected = full.chunk(len(group), 1)[group.index(me.rank)]
            call = functools.partial(xm.reduce_scatter, op, me.mine(data), 0.5, 1, len(group), groups)
            yield f"reduce_scatter {op} {groups}", call, expected


def all_to_all(me: Replica) -> Iterator[Case]:
    for groups in _groups(me.world):
        group = me.group(groups)
        data = me.data(2 * len(group), 3)
        parts = [data[rank].chunk(len(group), 0)[group.index(me.rank)] for rank in group]
        call = functools.partial(xm.all_to_all, me.mine(data), 0, 1, len(group), groups)
        yield f"all_to_all {groups}", call, torch.cat(parts, 1)


def ragged_all_to_all(me: Replica) -> Iterator[Case]:
    """Replica r of a group sends ``sizes[r][s]`` rows to replica s, which stores them by sender, in other places."""
    for groups in _groups(me.world):
        group = me.group(groups)
        count, place = len(group), group.index(me.rank)
        sizes = [[(3 * sender + 2 * target + me.world) % 4 for target in range(count)] for sender in range(count)]
        rows = 2 + max(sum(row) for row in sizes)
        data = me.data(rows, 3)
        first = lambda parts: [1 + sum(parts[:i]) for i in range(len(parts))]
        received = [row[place] for row in sizes]
        expected = torch.full((3 + 4 * count, 3), -1.0).to(data[0].dtype)
        for sender, (start, size) in enumerate(zip(first(received), received, strict=True)):
            begin = first(sizes[sender])[place]
            expected[start : start + size] = data[group[sender]][begin : begin + size]
        targets = [first([row[target] for row in sizes])[place] for target in range(count)]
        given = [torch.tensor(t, device="xla") for t in (first(sizes[place]), sizes[place], targets, received)]
        output = torch.full_like(expected, -1.0, device="xla")
        call = functools.partial(xm.ragged_all_to_all, me.mine(data), output, *given, groups)
        yield f"ragged_all_to_all {groups}", call, expected
        weights = me.data(3 + 4 * count, 3)
        to_value, to_output = torch.zeros(rows, 3), weights[me.rank].clone()
        for other in range(count):
            begin, size = first(sizes[place])[other], sizes[place][other]
            start = first([row[other] for row in sizes])[place]
            to_value[begin : begin + size] = weights[group[other]][start : start + size]
            to_output[first(received)[other] :][: received[other]] = 0
        gradients = functools.partial(_ragged_gradients, me.mine(data), output, given, groups, me.mine(weights))
        yield f"gradients of ragged_all_to_all {groups}", gradients, torch.cat([to_value, to_output])


def _ragged_gradients(
    value: torch.Tensor, output: torch.Tensor, given: list[torch.Tensor], groups: Any, weight: torch.Tensor
) -> torch.Tensor:
    leaves = value.detach().requires_grad_(), output.detach().requires_grad_()
    (xf.ragged_all_to_all(*leaves, *given, groups) * weight).sum().backward()
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    return torch.cat(found)


def collective_permute(me: Replica) -> Iterator[Case]:
    data = me.data(4)
    ring = [[rank, (rank + 1) % me.world] for rank in range(me.world)]
    call = functools.partial(xm.collective_permute, me.mine(data), ring)
    yield "collective_permute ring", call, data[(me.rank - 1) % me.world]
    if me.world > 1:
        expected = data[0] if me.rank == 1 else torch.zeros(4)
        yield "collective_permute one", functools.partial(xm.collective_permute, me.mine(data), [[0, 1]]), expected


def collective_broadcast(me: Replica) -> Iterator[Case]:
    root = me.world - 1
    for dtype in (*FLOATS, *INTEGERS, torch.complex64):
        data = me.data(3, dtype=dtype)
        tensors = [me.mine(data)]

        def call(tensors: list[torch.Tensor] = tensors) -> list[torch.Tensor]:
            xm.collective_broadcast(tensors, root)
            return tensors

        yield f"collective_broadcast {dtype}", call, [data[root]]


FAMILIES = (
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    ragged_all_to_all,
    collective_permute,
    collective_broadcast,
)


def check_all(seed: int = 0) -> None:
    """Run every case, one graph per family; an AssertionError names the case."""
    for family in FAMILIES:
        cases = list(family(Replica(seed)))
        got = [call() for _, call, _ in cases]
        torch_xla.sync()
        for (name, _, expected), result in zip(cases, got, strict=True):
            for one, other in zip(_list(result), _list(expected), strict=True):
                torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")


def _list(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def exact_broadcast() -> None:
    """-0.0 and NaN arrive bit for bit."""
    me = Replica()
    x = torch.tensor([-0.0, float("nan"), float("inf"), float(me.rank)], device="xla")
    xm.collective_broadcast([x])
    got = x.cpu()
    assert got[0].signbit() and got[1].isnan() and got[2].isinf() and got[3] == 0
