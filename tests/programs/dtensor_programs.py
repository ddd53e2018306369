"""DTensor over xla process groups, compared with the CPU, in processes that test_collectives.py spawns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor, randn, zeros
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import torch_xla
import torch_xla.distributed.spmd
import torch_xla.runtime as xr
from tests.support.comparisons import Comparisons
from torch_xla.distributed import xla_backend

OPS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.mean(0),
    lambda t: t.softmax(1),
    lambda t: (t * 2 + 1).relu().t() @ t,
]


def _full(t: torch.Tensor) -> torch.Tensor:
    return _whole(t).detach().cpu()


def _whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def _close(results: Comparisons, got: torch.Tensor, expected: torch.Tensor) -> None:
    results.add(_whole(got), expected, rtol=1e-3, atol=1e-4)


def operations(mesh: DeviceMesh, row: DeviceMesh) -> None:
    """Values and gradients over one- and two-dimensional meshes."""
    x, w = torch.randn(8, 9), torch.randn(9, 5)
    d = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    assert type(d) is DTensor and d.to_local().device.type == "xla" and not xr.is_spmd()
    with Comparisons() as results:
        for op in OPS:
            _close(results, op(d), op(x))
        _close(results, d.redistribute(mesh, [Shard(1), Replicate()]), x)
        d.add_(1)
        _close(results, d, x + 1)
        _products(row, x, w, results)
    part = distribute_tensor(x, mesh["model"], [Shard(1)])
    assert part.to_local().shape[1] == len(torch.arange(9).chunk(mesh.size(1))[mesh.get_local_rank("model")])


def _products(row: DeviceMesh, x: torch.Tensor, w: torch.Tensor, results: Comparisons) -> None:
    for one, other in ((Shard(0), Replicate()), (Shard(1), Shard(0)), (Replicate(), Shard(1))):
        parameter = nn.Parameter(distribute_tensor(w, row, [other]))
        product = distribute_tensor(x, row, [one]) @ parameter
        _close(results, product, x @ w)
        product.square().sum().backward()
        assert isinstance(parameter.grad, DTensor)
        _close(results, parameter.grad, 2 * x.t() @ (x @ w))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b, self.head = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(x + self.b(torch.relu(self.a(x)))))
        return result


def tensor_parallel(mesh: DeviceMesh, row: DeviceMesh) -> None:
    """A block with column, row and sequence parallelism trains as on the CPU; the loss is sharded over classes."""
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True),
        "a": ColwiseParallel(input_layouts=Shard(1)),
        "b": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    }
    reference = Block()
    model = parallelize_module(copy.deepcopy(reference).to("xla"), mesh["model"], plan)
    x, target = torch.randn(2, 6, 8), torch.randint(12, (12,))
    # foreach ops of torch 2.11 are wrong on partial sums, such as the gradients of the norm, on gloo as well.
    foreach = None if torch.__version__ >= (2, 12) else False
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=foreach) for m in (model, reference))
    for _ in range(2):
        for network, optimizer, device in ((model, ours, "xla"), (reference, theirs, "cpu")):
            optimizer.zero_grad()
            with loss_parallel():
                logits = network(x.to(device)).flatten(0, 1)
                nn.functional.cross_entropy(logits, target.to(device)).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.1, foreach=foreach)
            optimizer.step()
        torch_xla.sync()
    with Comparisons() as results:
        for got, expected in zip(model.parameters(), reference.parameters(), strict=True):
            _close(results, got, expected)


def random_numbers(mesh: DeviceMesh, row: DeviceMesh) -> None:
    """Each shard has its own random numbers, all ranks advance alike, and a restored state repeats them."""
    torch.manual_seed(3)
    state = torch.xla.get_rng_state()
    first = randn(16, 4, device_mesh=row, placements=[Shard(0)])
    second = nn.functional.dropout(zeros(16, 4, device_mesh=row, placements=[Shard(0)]) + 1, 0.5)
    joined = _whole(first), _whole(second)
    torch_xla.sync()
    values, dropped = (each.cpu() for each in joined)
    assert len(set(values.flatten().tolist())) == 64
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    states = [torch.empty_like(state) for _ in range(dist.get_world_size())]
    dist.all_gather(states, torch.xla.get_rng_state())
    torch_xla.sync()
    assert all(torch.equal(each, states[0]) for each in states)
    torch.xla.set_rng_state(state)
    assert torch.equal(_full(randn(16, 4, device_mesh=row, placements=[Shard(0)])), values)


def modules_and_checkpoints(mesh: DeviceMesh, row: DeviceMesh, folder: str) -> None:
    """distribute_module, and torch.distributed.checkpoint between placements."""
    layer = nn.Linear(6, 4)
    expected = layer.weight.detach().clone()
    layer = distribute_module(layer, row)
    with Comparisons() as results:
        _close(results, layer.weight, expected)
    saved, loaded = (distribute_tensor(v, row, [p]) for v, p in ((expected, Shard(0)), (expected * 0, Shard(1))))
    dcp.save({"weight": saved}, checkpoint_id=folder)
    dcp.load({"weight": loaded}, checkpoint_id=folder)
    with Comparisons() as results:
        _close(results, loaded, expected)


def everything(index: int, folder: str) -> None:
    """One process of a job."""
    assert xla_backend.ProcessGroupXla is not None
    dist.init_process_group("xla", init_method="xla://")
    world = dist.get_world_size()
    mesh = init_device_mesh("xla", (2, world // 2), mesh_dim_names=("data", "model"))
    row = DeviceMesh("xla", list(range(world)))
    parts: list[Callable[..., Any]] = [operations, tensor_parallel, random_numbers]
    for part in parts:
        torch.manual_seed(1)
        part(mesh, row)
    modules_and_checkpoints(mesh, row, folder)
    dist.destroy_process_group()
