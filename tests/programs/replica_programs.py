"""Programs that test_collectives.py spawns; each function asserts on every rank."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from tests.programs import collective_cases
from tests.support.comparisons import Comparisons
from tests.support.helpers import counts
from torch_xla.distributed import xla_backend
from torch_xla.distributed.fsdp.utils import (
    BucketizedReduceScatter,
    DummyReduceScatter,
    dummy_all_gather,
    dummy_all_reduce,
)

STEPS = 3
#: By the names that torch 2.11 and 2.12 have for them, and 2.13 deprecates.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def host_side() -> None:
    """Ordinals and rendezvous."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    assert xm.rendezvous("payload", bytes([rank])) == [bytes([r]) for r in range(world)]
    assert xm.rendezvous("") == [b""] * world
    assert xm.rendezvous("odd/tag ü", b"x" * rank) == [b"x" * r for r in range(world)]
    assert xm.xla_rendezvous(b"y") == [b"y"] * world
    if rank < 2 <= world:
        assert xm.rendezvous("some", str(rank).encode(), [0, 1]) == [b"0", b"1"]
    total = xm.mesh_reduce("tensors", torch.full((2,), rank, device="xla"), torch.cat)
    assert total.device.type == "cpu" and total.tolist() == [r for r in range(world) for _ in range(2)]
    assert xm.mesh_reduce("numbers", {"rank": rank}, len) == world
    assert xm.do_on_ordinals(lambda x: x.sum(), (torch.ones(3, device="xla"),), [0]) == (3 if rank == 0 else None)
    assert xm.is_master_ordinal() == xm.is_master_ordinal(local=False) == (rank == 0) == (xm.get_local_ordinal() == 0)
    text = io.StringIO()
    with redirect_stdout(text):
        xm.master_print("hello")
    assert text.getvalue() == ("hello\n" if rank == 0 else "")
    with pytest.raises(ValueError, match="include this one"):
        xm.rendezvous("without me", replicas=[(rank + 1) % world + world])


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8).eval(), nn.Linear(8, 3))


def _train(model: nn.Module, inputs: list[torch.Tensor], step: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Return the weights after some steps of SGD on the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(STEPS):
        optimizer.zero_grad()
        model(inputs[i]).square().mean().backward()
        step(optimizer)
    return [p.detach().cpu() for p in model.parameters()]


def _xla_step(step: Callable[[Any], Any], compiled: list[int]) -> Callable[[Any], Any]:
    def run(optimizer: Any) -> None:
        with counts() as moved:
            step(optimizer)
            torch_xla.sync()
        compiled.append(moved.compilations)

    return run


def training() -> None:
    """Averaged gradients give the weights of one device with the joined batch, with one program per step."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    everything = torch.randn(STEPS, world, 4, 6, generator=torch.Generator().manual_seed(1))
    expected = _train(_model(), list(everything.flatten(1, 2)), lambda optimizer: optimizer.step())
    mine = [batch.to("xla") for batch in everything[:, rank]]

    def buckets(optimizer: Any) -> None:
        gradients = xm._fetch_gradients(optimizer)
        xm.all_reduce_bucketized_gradients(gradients, 1 / world, None, True, bucket_cap_mb=1)
        optimizer.step()

    for name, step in {"optimizer_step": xm.optimizer_step, "buckets": buckets}.items():
        compiled: list[int] = []
        model = _model().to("xla")
        if rank:
            nn.init.zeros_(model[0].weight)
        xm.broadcast_master_param(model)
        got = _train(model, mine, _xla_step(step, compiled))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        # The first step creates the momentum, the second uses it.
        assert compiled[2:] == [0] * (STEPS - 2) and max(compiled) <= 1, compiled


def distributed_data_parallel() -> None:
    """The same with DistributedDataParallel, gradient accumulation, and a parameter that one rank does not use."""
    world, rank = dist.get_world_size(), dist.get_rank()
    everything = torch.randn(STEPS, world, 4, 6, generator=torch.Generator().manual_seed(1))
    expected = _train(_model(), list(everything.flatten(1, 2)), lambda optimizer: optimizer.step())
    compiled: list[int] = []
    model = nn.parallel.DistributedDataParallel(_model().to("xla"))
    mine = [batch.to("xla") for batch in everything[:, rank]]
    got = _train(model, mine, _xla_step(lambda optimizer: optimizer.step(), compiled))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert compiled[2:] == [0] * (STEPS - 2) and max(compiled) <= 1, compiled
    x = torch.full((1, 6), float(rank), device="xla")
    model.zero_grad()
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()
    bias = next(reversed(list(model.parameters()))).grad
    assert bias is not None and bias.tolist() == [2.0] * 3
    _unused(world, rank)


class _Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.none = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, first: bool) -> torch.Tensor:
        result: torch.Tensor = self.one(x) if first else self.two(x)
        return result


def _unused(world: int, rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(_Fork().to("xla"), find_unused_parameters=True)
    model(torch.ones(1, 1, device="xla"), rank == 0).sum().backward()
    inner = model.module
    assert inner.one.bias.grad.tolist() == [1 / world]
    if world > 1:
        torch.testing.assert_close(inner.two.bias.grad.cpu(), torch.tensor([(world - 1) / world]))
    assert inner.none.bias.grad is None
    strict = nn.parallel.DistributedDataParallel(_Fork().to("xla"))
    with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
        strict(torch.ones(1, 1, device="xla"), True).sum().backward()


def process_group() -> None:
    """Compare every collective of torch.distributed with its definition."""
    world, rank = dist.get_world_size(), dist.get_rank()
    data = [torch.arange(2.0) + 10 * r for r in range(world)]
    mine = data[rank].to("xla")
    with Comparisons() as results:
        _collectives(world, rank, data, results)
    last = mine.clone()
    dist.broadcast(last, world - 1)
    assert torch.equal(last.cpu(), data[-1])  # a read without a sync
    _rooted(world, rank, data, mine)
    _uneven(world, rank)


def _collectives(world: int, rank: int, data: list[torch.Tensor], results: Comparisons) -> None:
    mine = data[rank].to("xla")
    for tensor in (mine.clone(), data[rank].clone()):  # a CPU tensor is transferred through the device
        dist.all_reduce(tensor)
        results.add(tensor, sum(data))  # type: ignore[arg-type]
    mean = mine.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    results.add(mean, sum(data) / world, rtol=1e-6)  # type: ignore[arg-type]
    outputs = [torch.zeros(2, device="xla") for _ in range(world)]
    dist.all_gather(outputs, mine)
    joined = torch.zeros(2 * world, device="xla")
    ALL_GATHER(joined, mine)
    results.add(torch.cat(outputs), torch.cat(data))
    results.add(joined, torch.cat(data))
    part, full = torch.zeros(2, device="xla"), torch.cat(data).to("xla") * (rank + 1)
    REDUCE_SCATTER(part, full)
    results.add(part, data[rank] * (world * (world + 1) / 2))
    dist.reduce_scatter(part, list(full.chunk(world)), dist.ReduceOp.MAX)
    results.add(part, data[rank] * world)
    swapped = torch.zeros(world, device="xla")
    dist.all_to_all_single(swapped, torch.arange(float(world), device="xla") + 10 * rank)
    results.add(swapped, torch.tensor([10.0 * r + rank for r in range(world)]))
    dist.all_to_all(outputs, [mine + r for r in range(world)])
    results.add(torch.stack(outputs), torch.stack(data) + rank)


def _uneven(world: int, rank: int) -> None:
    """all_to_all with unequal sizes: rank r sends ``sizes[r][s]`` rows to rank s."""
    generator = torch.Generator().manual_seed(5)
    with Comparisons() as results:
        for most in (5, 5, 1):
            sizes = torch.randint(0, most + 1, (world, world), generator=generator).tolist()
            _exchange(rank, [[0] * world] * world if most == 1 else sizes, generator, results)
    _uneven_programs(world, rank)
    x = torch.ones(world, 2, device="xla")
    with pytest.raises(ValueError, match="one per rank, that sum to the"):
        dist.all_to_all_single(x, x, [2] * world, [1] * world)
    if world > 1:
        wrong = [1] * world if rank else [0, 2] + [1] * (world - 2)
        with pytest.raises(ValueError, match="rank 0 sends 0 rows to rank 0, which expects 1"):
            dist.all_to_all_single(torch.empty_like(x), x, [1] * world, wrong)
        with pytest.raises(ValueError, match="reduce_scatter requires an output and inputs of the same shape"):
            dist.reduce_scatter(x[0], [x[0], x[0][:1]] + [x[0]] * (world - 2))


def _exchange(rank: int, sizes: list[list[int]], generator: torch.Generator, results: Comparisons) -> None:
    data = [torch.randn(sum(row), 2, generator=generator) for row in sizes]
    sent, received = sizes[rank], [row[rank] for row in sizes]
    expected = [data[r].split(sizes[r])[rank] for r in range(len(sizes))]
    for device in ("xla", "cpu"):
        single = torch.full((sum(received), 2), 9.0, device=device)
        dist.all_to_all_single(single, data[rank].to(device), received, sent)
        results.add(single, torch.cat(expected))
    several = [torch.full((count, 2), 9.0, device="xla") for count in received]
    dist.all_to_all(several, list(data[rank].to("xla").split(sent)))
    for got, one in zip(several, expected, strict=True):
        results.add(got, one)


def _uneven_programs(world: int, rank: int) -> None:
    """Other split sizes with the same totals do not recompile."""
    x = torch.ones(4 * world, 2, device="xla")
    compiled = []
    for shift in range(3):
        sizes = [[4 + (2 if (r + s + shift) % world == 0 else 0) for s in range(world)] for r in range(world)]
        keep = sum(sizes[rank]) - 4 * world
        given = torch.cat([x, x[:keep]])
        torch_xla.sync()
        with counts() as moved:
            dist.all_to_all_single(torch.empty_like(given), given, [row[rank] for row in sizes], sizes[rank])
        compiled.append(moved.compilations)
    assert compiled[1:] == [0, 0], compiled


def _rooted(world: int, rank: int, data: list[torch.Tensor], mine: torch.Tensor) -> None:
    with Comparisons() as results:
        total = mine.clone()
        dist.reduce(total, 0)
        results.add(total, sum(data) if rank == 0 else data[rank])  # type: ignore[arg-type]
        gathered = [torch.zeros(2, device="xla") for _ in range(world)] if rank == 0 else None
        dist.gather(mine, gathered, 0)
        if gathered is not None:
            results.add(torch.cat(gathered), torch.cat(data))
        given = torch.zeros(2, device="xla")
        dist.scatter(given, [d.to("xla") + 1 for d in data] if rank == 0 else None, 0)
        results.add(given, data[rank] + 1)
    with counts() as moved:
        for length in (0, 3, 500):
            _objects(world, rank, "x" * length)
    assert moved.compilations == moved.executions == 0
    dist.barrier()
    if world > 1:
        _smaller_groups(world, rank, data, mine)
        _rings(world, rank)


def _objects(world: int, rank: int, text: str) -> None:
    """Pickled objects of different sizes per rank, without the device."""
    every = [text * r for r in range(world)]
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, every[rank])
    assert objects == every
    gathered = [None] * world if rank == world - 1 else None
    dist.gather_object(every[rank], gathered, world - 1)
    assert gathered == (every if rank == world - 1 else None)
    listed = [{"text": text}, rank]
    dist.broadcast_object_list(listed, 0)
    assert listed == [{"text": text}, 0]
    given = [None]
    dist.scatter_object_list(given, every if rank == 0 else None, 0)
    assert given == [every[rank]]


def _smaller_groups(world: int, rank: int, data: list[torch.Tensor], mine: torch.Tensor) -> None:
    if rank == 0:
        dist.send(mine, world - 1)
    if rank == world - 1:
        received = torch.zeros(2)
        dist.recv(received, 0)
        assert torch.equal(received, data[0])
    groups = (
        [dist.new_group([r]) for r in range(world)] if world == 2 else [dist.new_group([0, 2]), dist.new_group([1, 3])]
    )
    members = [[r] for r in range(world)] if world == 2 else [[0, 2], [1, 3]]
    for group, ranks in zip(groups, members, strict=True):
        if rank in ranks:
            total = mine.clone()
            dist.all_reduce(total, group=group)
            assert torch.equal(total.cpu(), sum(data[r] for r in ranks))
    if rank in members[0]:  # the other ranks do not take part
        first = mine.clone()
        dist.broadcast(first, members[0][-1], group=groups[0])
        assert torch.equal(first.cpu(), data[members[0][-1]])


def _rings(world: int, rank: int) -> None:
    """Rings and pairwise messages that each rank posts in a different order, with device and host tensors."""
    following, previous = (rank + 1) % world, (rank - 1) % world
    for device in ("xla", "cpu"):
        sent = torch.full((3,), float(rank), device=device)
        for turn in range(2):
            received = torch.zeros(3, device=device)
            operations = [dist.P2POp(dist.isend, sent, following), dist.P2POp(dist.irecv, received, previous)]
            for request in dist.batch_isend_irecv(operations if turn == 0 else operations[::-1]):
                request.wait()
            assert received.tolist() == [float(previous)] * 3
            sent = received if turn else sent
        received = torch.zeros(3, device=device)
        request = dist.isend(sent + 1, following)
        dist.recv(received, previous)
        request.wait()
        assert received.tolist() == [float((previous - 1) % world) + 1] * 3
    # All ranks to all ranks, two messages each, in order; the barrier runs them.
    others = [other for other in range(world) if other != rank]
    buffers = {other: [torch.zeros(1, device="xla") for _ in range(2)] for other in others}
    for turn in range(2):
        for other in others if rank % 2 else reversed(others):
            dist.irecv(buffers[other][turn], other)
            dist.isend(torch.full((1,), 10.0 * rank + turn, device="xla"), other)
    dist.barrier()
    torch_xla.sync()
    assert {k: [b.item() for b in v] for k, v in buffers.items()} == {k: [10.0 * k, 10.0 * k + 1] for k in others}


def differentiable() -> None:
    """torch_xla.core.functions: values and gradients."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    x = torch.full((2,), float(rank), device="xla", requires_grad=True)
    (xf.all_reduce("sum", x, 0.5) * (rank + 1)).sum().backward()
    scale = 1.0 if world == 1 else 0.5
    assert x.grad is not None and x.grad.tolist() == [scale * world * (world + 1) / 2] * 2
    y = torch.full((2,), float(rank), device="xla", requires_grad=True)
    xf.all_reduce("max", y).sum().backward()
    assert y.grad is not None and y.grad.tolist() == [float(world if rank == world - 1 else 0)] * 2
    z = torch.ones(1, 2, device="xla", requires_grad=True)
    (xf.all_gather(z, 0).sum(1) * torch.arange(1.0, world + 1, device="xla")).sum().backward()
    assert z.grad is not None and z.grad.tolist() == [[float(rank + 1)] * 2]  # only the local loss and the local shard
    _sync_batch_norm(world, rank)
    _distributed_mm(world, rank)


def _sync_batch_norm(world: int, rank: int) -> None:
    everything = torch.randn(world, 3, 4, 2, generator=torch.Generator().manual_seed(2)) + 5
    oracle, norm = nn.BatchNorm1d(4), xf.SyncBatchNorm(4).to("xla")
    full = everything.flatten(0, 1).requires_grad_()
    mine = everything[rank].to("xla").requires_grad_()
    oracle(full).square().mul(full).sum().backward()
    norm(mine).square().mul(mine).sum().backward()
    assert full.grad is not None and mine.grad is not None
    torch_xla.sync()
    torch.testing.assert_close(mine.grad.cpu(), full.grad.unflatten(0, (world, 3))[rank], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_mean.cpu(), oracle.running_mean)
    torch.testing.assert_close(norm.running_var.cpu(), oracle.running_var)


def _distributed_mm(world: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(3)
    w, x = torch.randn(world, 2, 3, generator=generator), torch.randn(world, 3, 4, generator=generator)
    with Comparisons() as results:
        for split in (1, 2):
            got = xf.distributed_mm(w[rank].to("xla"), x[rank].to("xla"), split)
            results.add(got, w.flatten(0, 1) @ x[rank], rtol=1e-4, atol=1e-4)


def reads_of_some() -> None:
    """A rank that does not read a result runs its collective before later reads, with and without cached programs."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    for turn in range(3):
        mine = torch.tensor([rank + turn], device="xla")
        most, least = xm.all_reduce("max", mine), xm.all_reduce("min", mine.float())
        if rank != turn % world:
            assert most.item() == world - 1 + turn
        if rank == 0:
            assert least.item() == turn
        total = xm.all_reduce("sum", torch.full((300,), rank, device="xla"))
        with counts() as moved:
            assert total.tolist() == [world * (world - 1) // 2] * 300
            assert (most.item(), least.item()) == (world - 1 + turn, turn)
        assert world == 1 or moved.executions == 1 + (rank != 0) * (1 + (rank == turn % world)), (rank, turn)
    chain = torch.ones(3, device="xla")
    for _ in range(4):
        chain = xm.all_reduce("sum", chain) / world
    with counts() as moved:
        assert chain.tolist() == [1.0] * 3
    assert moved.executions == 1, "what is needed is one program"
    torch_xla.sync()


def empty_tensors() -> None:
    """Collectives of empty tensors have empty results; a program may use only empty tensors."""
    world = xm.xrt_world_size()
    empty = torch.empty(0, device="xla")
    torch_xla.sync()
    assert (xm.all_reduce("sum", torch.ones(3, device="xla")) + empty.sum()).tolist() == [world] * 3
    results: list[tuple[torch.Tensor, tuple[int, ...]]] = []
    for rows, columns in ((0, world), (world, 0), (0, 0)):
        for dtype in (torch.float32, torch.bool):
            x = torch.zeros(rows, columns, dtype=dtype, device="xla")
            results += [(xm.all_reduce(op, x), (rows, columns)) for op in ("sum", "mul", "min")]
            results += [(xm.reduce_scatter(op, x, 1.0, 0, world), (rows // world, columns)) for op in ("sum", "mul")]
            results += [(xm.all_gather(x, 0), (rows * world, columns)), (xm.all_gather(x, 1), (rows, columns * world))]
            results += [(xm.all_to_all(x, 0, 1, world), (rows // world, columns * world))]
            results += [(xm.collective_permute(x, [[r, (r + 1) % world] for r in range(world)]), (rows, columns))]
    torch_xla.sync()
    for result, shape in results:
        assert result.cpu().shape == shape


def odd_ends() -> None:
    """Ranks may differ in ops that are not collectives, and may drop results."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    # 0, 1 and -1 are constants of a graph, other numbers are inputs.
    total = xm.all_reduce("sum", torch.full((2,), rank, device="xla"))
    assert total.tolist() == [world * (world - 1) // 2] * 2
    x = torch.ones(2, device="xla")
    kept = xm.all_reduce("sum", x * 3)
    if rank:
        del kept
    torch_xla.sync()
    if rank == 0:
        assert kept.tolist() == [3.0 * world] * 2
    assert xm.all_reduce("sum", []) == []
    if world > 1:
        with pytest.raises(ValueError, match="contain each of the"):
            xm.all_reduce("sum", x, groups=[[0]])
        with pytest.raises(ValueError, match="cannot share equally"):
            xm.reduce_scatter("sum", torch.ones(world + 1, device="xla"), 1.0, 0, world)
        with pytest.raises(ValueError, match="one xla device"):
            xm.all_reduce("sum", torch.ones(2))
        with pytest.raises(ValueError, match="none of sum, mul"):
            xm.all_reduce("mean", x)


def buckets() -> None:
    """Collectives of many tensors equal those of single tensors, for any number of buckets."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    numbers = torch.Generator().manual_seed(4)
    every = [torch.randn(world, 2 * world, 300 * i + 1, generator=numbers) for i in range(1, 4)]
    mine = [one[rank].to("xla") for one in every]
    with Comparisons() as results:
        for cap in (1, 160):
            for got, one in zip(xm.all_gather_bucketized(mine, 1, bucket_cap_mb=cap), every, strict=True):
                results.add(got, torch.cat(list(one), 1))
            parts = xm.reduce_scatter_bucketized("sum", mine, 0.5, 0, world, bucket_cap_mb=cap)
            outs = [torch.empty_like(part) for part in parts]
            xm.reduce_scatter_bucketized("sum", mine, 0.5, 0, world, output=outs, bucket_cap_mb=cap)
            for part, out, one in zip(parts, outs, every, strict=True):
                for result in (part, out):
                    results.add(result, one.sum(0).chunk(world)[rank] * 0.5, rtol=1.3e-6, atol=1e-5)
    met: list[torch.Tensor] = []
    scatter, dummy = BucketizedReduceScatter(1, world), DummyReduceScatter(world)
    for tensor in mine:
        scatter(tensor, met.append)
    assert not met
    scatter.flush()
    dummy(mine[0], met.append)
    assert torch.equal(met[2], parts[2] * 2) and met[3].shape == met[0].shape
    assert dummy_all_gather(mine[0], 1).shape == xm.all_gather(mine[0], 1).shape
    assert torch.equal(dummy_all_reduce("sum", mine[0], 2.0), mine[0] * 2)
    x = torch.full((3,), float(rank), device="xla", requires_grad=True)
    total = xf.AllReduceSumLayer.apply(x)
    (total * (rank + 1)).sum().backward()
    torch_xla.sync()
    assert total.tolist() == [world * (world - 1) / 2] * 3
    assert x.grad is not None and x.grad.tolist() == [world * (world + 1) / 2] * 3
    assert xm.xla_replication_devices() == [f"CPU:{i}" for i in range(world)]
    torch_xla.sync()


def channels() -> None:
    """Point-to-point messages between replicas; other ranks continue."""
    world, rank = xm.xrt_world_size(), xm.get_ordinal()
    if world == 1:
        with pytest.raises(RuntimeError, match="requires a second replica"):
            xm.send(torch.ones(1, device="xla"), 0)
        return
    for turn in range(3):  # to and fro over one channel, onwards over another
        value = torch.arange(3.0, device="xla") + rank + 10 * turn
        out = torch.zeros(3, device="xla")
        if rank == 0:
            assert xm.send(value, 5) is value
            assert xm.recv(out, 5) is out
            assert out.tolist() == [1.0 + 10 * turn, 2.0 + 10 * turn, 3.0 + 10 * turn]
        elif rank == 1:
            assert xm.recv(out, 5).tolist() == [10.0 * turn, 1.0 + 10 * turn, 2.0 + 10 * turn]
            xm.send(value, 5)
            if world > 2:
                xm.send(out.int(), 6)
        elif rank == 2:
            assert xm.recv(out.int(), 6).tolist() == [10 * turn, 1 + 10 * turn, 2 + 10 * turn]


def everything(index: int) -> None:
    """One process of a job."""
    assert torch_xla.devices() == [torch.device("xla:0")] and index == xm.get_ordinal()
    assert xla_backend.ProcessGroupXla is not None
    dist.init_process_group("xla", init_method="xla://")
    collective_cases.exact_broadcast()
    collective_cases.check_all()
    parts = (
        host_side,
        reads_of_some,
        empty_tensors,
        odd_ends,
        training,
        differentiable,
        buckets,
        channels,
        process_group,
        distributed_data_parallel,
    )
    for part in parts:
        try:
            part()
        except Exception as error:
            raise AssertionError(f"{part.__name__} of {xm.xrt_world_size()} replicas") from error
    dist.destroy_process_group()


def repeated(index: int, times: int) -> None:
    """Repeat the same collectives with new data."""
    for seed in range(times):
        collective_cases.check_all(seed)
