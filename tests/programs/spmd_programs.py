"""SPMD programs on four CPU devices; run by test_spmd.py, each function asserts."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import distribute_module, distribute_tensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard
from torch.nn import functional as F

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support.helpers import counts
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.distributed.spmd import api, debugging
from torch_xla.distributed.spmd._mesh import MeshError
from torch_xla.utils import dlpack

STEPS = 4


def _mesh(*shape: int) -> xs.Mesh:
    return xs.Mesh(range(math.prod(shape)), shape, ("data", "model")[: len(shape)])


def _spec(t: torch.Tensor) -> P:
    sharding = xs.get_sharding(t)
    assert isinstance(sharding, jax.sharding.NamedSharding)
    return sharding.spec


def _block(width: int = 16) -> nn.Module:
    torch.manual_seed(3)
    return nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)


def _data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shape = (8, 6, 16)
    return [(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(STEPS)]


def _train(device: str, prepare: Callable[[nn.Module], None], mark: Callable[[torch.Tensor], Any]) -> nn.Module:
    model = _block().to(device)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, target in _data():
        x, target = x.to(device), target.to(device)
        mark(x), mark(target)
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        torch_xla.sync()
    return model


def _fully_sharded(model: nn.Module) -> None:
    for p in model.parameters():
        xs.mark_sharding(p, _mesh(4), ("data", *(None,) * (p.dim() - 1)))


def _tensor_parallel(model: nn.Module) -> None:
    mesh = _mesh(2, 2)
    xs.mark_sharding(model.linear1.weight, mesh, ("model", None))
    xs.mark_sharding(model.linear2.weight, mesh, (None, "model"))
    model.linear1.register_forward_hook(
        lambda _, inputs, output: xs.mark_sharding(output, mesh, ("data", None, "model"))
    )


#: How a model is trained: what is done with it first, and with each batch.
WAYS: dict[str, tuple[Callable[[nn.Module], None], Callable[[torch.Tensor], Any]]] = {
    "replicated": (lambda model: None, lambda t: None),
    "data parallel": (lambda model: None, lambda t: xs.mark_sharding(t, _mesh(4), ("data", None, None))),
    "fully sharded": (_fully_sharded, lambda t: xs.mark_sharding(t, _mesh(4), ("data", None, None))),
    "tensor parallel": (_tensor_parallel, lambda t: xs.mark_sharding(t, _mesh(2, 2), ("data", None, None))),
}


def training() -> None:
    """Training gives the weights of one device with the full batch, one program after step one, stable shardings."""
    expected = _train("cpu", lambda model: None, lambda t: None)
    xr.use_spmd()
    for name, (prepare, mark) in WAYS.items():
        with counts() as moved:
            model = _train("xla", prepare, mark)
        assert moved.compilations == 2, f"{name}: the first step makes the optimizer's state"
        assert moved.executions == STEPS and not moved.fallbacks
        got = {key: p.detach().cpu() for key, p in model.named_parameters()}
        want = {key: p.detach() for key, p in expected.named_parameters()}
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-6)
        first = next(p for key, p in model.named_parameters() if key == "linear1.weight")
        assert _spec(first) == {"fully sharded": P("data", None), "tensor parallel": P("model", None)}.get(name, P())


def tensors() -> None:
    """Annotated tensors remain plain tensors; views, writes, copies and files preserve the sharding."""
    before = torch.arange(8.0, device="xla")
    torch_xla.sync()
    xr.use_spmd()
    mesh = _mesh(2, 2)
    assert (before + 1).tolist() == [*range(1, 9)], "an array from before is put on all devices"
    cpu = torch.arange(32.0).reshape(8, 4)
    x = xs.mark_sharding(cpu.to("xla"), mesh, ("data", "model"))
    assert type(x) is torch.Tensor and _spec(x) == P("data", "model")
    assert [(s.data.shape, s.device.id) for s in _array(x).addressable_shards] == [((4, 2), i) for i in range(4)]
    x[2:4].mul_(10), cpu[2:4].mul_(10)
    x.t().add_(1), cpu.t().add_(1)
    torch_xla.sync()
    assert _spec(x) == P("data", "model") and torch.equal(x.cpu(), cpu)
    total = torch.zeros((), device="xla")
    torch_xla.sync()
    assert _spec(total) == P(), "a graph that reads nothing runs on all devices, too"
    total += x.sum()
    assert total.item() == cpu.sum()
    flat = (x @ x.t()).view(64)
    xs.mark_sharding(flat, mesh, (("data", "model"),))
    assert torch.equal(flat.cpu(), (cpu @ cpu.t()).view(64))
    y = copy.deepcopy(x)
    x.copy_(torch.ones(8, 4))
    torch_xla.sync()
    assert _spec(x) == P("data", "model"), "a write preserves the sharding"
    assert torch.equal(y.cpu(), cpu)
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    assert torch.equal(torch.load(file).cpu(), cpu)
    assert torch.equal(xs.clear_sharding(y), cpu) and _spec(y) == P()
    assert (y > 5).nonzero().shape == (cpu > 5).nonzero().shape, "an op on the CPU"
    torch.testing.assert_close(torch.linalg.svdvals(y).cpu(), torch.linalg.svdvals(cpu), rtol=1e-5, atol=1e-4)


def _array(t: torch.Tensor) -> jax.Array:
    from torch_xla._engine import recorder

    array: jax.Array = recorder.bindings().nodes_of([t])[0].buffer
    return array


def donation() -> None:
    """An in-place update of an annotated tensor reuses its memory."""
    xr.use_spmd()
    x = xs.mark_sharding(torch.zeros(8, 4).to("xla"), _mesh(4), ("data", None))
    torch_xla.sync()
    for step in range(3):
        old = _array(x)
        x.add_(1)
        with counts() as moved:
            torch_xla.sync()
        assert moved.compilations == (step == 0) and old.is_deleted()
    assert x.cpu().unique().tolist() == [3]


def gradients() -> None:
    """An activation annotated with both interfaces."""
    xr.use_spmd()
    mesh = _mesh(2, 2)
    x = torch.randn(8, 4)
    leaf = x.to("xla").requires_grad_()
    marked = xs.mark_sharding_with_gradients(leaf * 2, mesh, ("data", "model"))
    marked.sin().sum().backward()
    torch_xla.sync()
    torch.testing.assert_close(leaf.grad.cpu(), 2 * torch.cos(2 * x))
    assert _spec(marked.detach()) == P("data", "model")


def dtensor() -> None:
    """DTensor functions, which torch dispatches to this backend."""
    mesh, x = _mesh(2, 2), torch.randn(8, 4)
    grid = DeviceMesh("xla", torch.arange(4).view(2, 2), mesh_dim_names=("data", "model"), _init_backend=False, _rank=0)
    assert api.convert_to_xla_mesh(grid) == mesh
    assert api.convert_to_xla_partition_spec(x, [Shard(0), Replicate()]) == (0, None)
    assert api.convert_to_xla_partition_spec(x, [Shard(1), Shard(1)]) == (None, (0, 1))
    with pytest.raises(ValueError, match="only Shard and Replicate"):
        api.convert_to_xla_partition_spec(x, [Partial(), Replicate()])
    weight = distribute_tensor(nn.Parameter(x), grid, [Shard(0), Shard(1)])
    assert xr.is_spmd(), "asking for it switches it on"
    assert isinstance(weight, nn.Parameter) and _spec(weight) == P("data", "model") and torch.equal(weight.cpu(), x)

    def split(name: str, module: nn.Module, mesh: Any) -> None:
        if isinstance(module, nn.Linear):
            distribute_tensor(module.weight, mesh, [Shard(0), Replicate()])

    model = distribute_module(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), grid, split)
    assert _spec(model[0].weight) == P("data", None)


def loading() -> None:
    """Batches sharded during the upload."""
    xr.use_spmd()
    spec = xs.ShardingSpec(_mesh(4), ("data", None))
    batches = [{"x": torch.full((8, 2), float(i)), "y": torch.arange(8)} for i in range(3)]
    batches.append({"x": torch.ones(3, 2), "y": torch.arange(3)})
    seen = [
        (_spec(b["x"]), _spec(b["y"]), b["x"].sum().item()) for b in MpDeviceLoader(batches, "xla", input_sharding=spec)
    ]
    assert seen == [(P("data", None), P(), s) for s in (0.0, 16.0, 32.0, 6.0)], "the last one is not even"
    sent = xm.send_cpu_data_to_device([torch.ones(8, 3)], "xla", input_sharding=spec)
    assert _spec(sent[0]) == P("data", None)
    with pytest.raises(TypeError, match="must be a ShardingSpec"):
        next(iter(MpDeviceLoader(batches, "xla", input_sharding="data")))
    by_key = {"x": spec, "y": None}
    (split,) = MpDeviceLoader(batches[:1], None, input_sharding=by_key)
    assert (_spec(split["x"]), _spec(split["y"])) == (P("data", None), P())
    sent = xm.send_cpu_data_to_device({"x": torch.ones(8, 3), "y": torch.ones(8, 1)}, "xla", by_key)
    assert (_spec(sent["x"]), _spec(sent["y"])) == (P("data", None), P())
    with pytest.raises(ValueError, match="has no entry for y; use None to replicate a tensor"):
        next(iter(MpDeviceLoader(batches, "xla", input_sharding={"x": spec})))
    with pytest.raises(TypeError, match=r"has keys \(x\), a batch is a list"):
        next(iter(MpDeviceLoader([[torch.ones(8, 2)]], "xla", input_sharding={"x": spec})))


#: Calls that raise, with the error type and part of the message.
REFUSED: list[tuple[Callable[[torch.Tensor], Any], type[Exception], str]] = [
    (lambda x: xs.mark_sharding(x, _mesh(4), ("data",)), MeshError, "1 entries for 2 dimensions"),
    (lambda x: xs.mark_sharding(x, _mesh(2, 2), ("data", "data")), MeshError, "two dimensions over one axis"),
    (lambda x: xs.mark_sharding(x, _mesh(4), ("rows", None)), MeshError, "'rows' is not an axis"),
    (lambda x: xs.mark_sharding(x, _mesh(4), (7, None)), MeshError, "7 is not an axis"),
    (lambda x: xs.mark_sharding(x.cpu(), _mesh(4), ("data", None)), ValueError, "the tensor is on cpu"),
    (lambda x: xs.mark_sharding(x, _mesh(2), ("data", None)), MeshError, "the job has 4 devices"),
    (lambda x: xs.mark_sharding(x[:1].expand(8, 4), _mesh(4), ("data", None)), RuntimeError, "clone"),
    (lambda x: xs.Mesh(range(4), (3,)), MeshError, "do not fill"),
    (lambda x: xs.Mesh(range(8), (2, 4)), ValueError, "has 8 devices, but the job has 4 devices"),
    (lambda x: xs.Mesh([0, 0], (2,)), MeshError, "each once"),
    (lambda x: xs.Mesh(range(4), (2, 2), ("a", "a")), MeshError, "different names"),
    (lambda x: xr.use_spmd(auto=True), NotImplementedError, "auto"),
    (lambda x: debugging.visualize_tensor_sharding(x[None]), ValueError, "has no sharding yet"),
    (lambda x: dlpack.to_dlpack(x), BufferError, "over 4 devices"),
]  # fmt: skip


def surface() -> None:
    """Meshes, device counts, visualizations and argument errors."""
    with pytest.raises(RuntimeError, match="use_spmd"):
        xs.mark_sharding(torch.ones(4, device="xla"), _mesh(4), ("data",))
    assert not xr.is_spmd() and torch_xla.device_count() == 4
    far = torch.ones(1, device="xla:2")
    with pytest.raises(RuntimeError, match="tensors exist on xla:2"):
        xr.use_spmd()
    del far
    xr.use_spmd()
    xr.use_spmd()  # again, when devices have been used: nothing changes
    assert xr.is_spmd() and torch_xla.device_count() == 1 and xr.addressable_device_count() == 1
    assert xr.global_runtime_device_count() == xr.addressable_runtime_device_count() == 4 and xr.world_size() == 1
    mesh = _mesh(2, 2)
    assert xs.Mesh.from_str(str(mesh)) == mesh and xs.Mesh.from_str("no mesh") is None
    assert mesh.shape() == {"data": 2, "model": 2} and mesh.size() == 4 and mesh.get_axis_name_idx("model") == 1
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3]] and xs.get_1d_mesh("x").mesh_shape == (4,)
    xs.set_global_mesh(mesh)
    assert xs.get_global_mesh() is mesh
    assert xs.HybridMesh(ici_mesh_shape=(2, 2), axis_names=("data", "model")).shape() == mesh.shape()
    x = xs.mark_sharding(torch.ones(8, 4).to("xla"), mesh, ("model", 0))
    for call, kind, text in REFUSED:
        with pytest.raises(kind, match=text):
            call(x)
    rows = [line.split("│")[1:3] for line in debugging.format_sharding(x).splitlines() if "CPU" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [["CPU 0", "CPU 2"], ["CPU 1", "CPU 3"]]
    assert xm.all_reduce("sum", x).cpu().sum() == 32, "there is one replica"


def replay() -> None:
    """A captured step over the mesh trains bit by bit as one that is recorded, and its values stay sharded."""
    xr.use_spmd()
    mesh = _mesh(2, 2)

    def train(is_captured: bool) -> list[torch.Tensor]:
        model = _block().to("xla")
        xs.mark_sharding(model.linear1.weight, mesh, ("model", None))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        compiled = torch_xla.compile(step, replay=is_captured)
        losses = []
        for x, target in [*_data(), *_data()]:
            x, target = x.to("xla"), target.to("xla")
            xs.mark_sharding(x, mesh, ("data", None, None))
            losses.append(compiled(x, target))
        assert _spec(model.linear1.weight) == P("model", None)
        return [value.detach().cpu() for value in [*losses, *model.parameters()]]

    with counts() as moved:
        found = train(True)
    assert (moved["ReplayedSteps"], moved.get("ReplayRejections")) == (5, None)
    for a, b in zip(found, train(False), strict=True):
        assert torch.equal(a, b)


PROGRAMS: list[Callable[[], None]] = [training, tensors, donation, gradients, dtensor, loading, surface, replay]


def job() -> None:
    """Two processes with two devices each train one model; each loads its half of every batch."""
    xr.use_spmd()
    assert (xr.process_count(), xr.world_size(), xr.global_runtime_device_count()) == (2, 1, 4)
    rank, mesh = xr.process_index(), _mesh(4)
    assert xm.rendezvous("here", bytes([rank])) == [b"\0", b"\1"] and xm.is_master_ordinal() == (rank == 0)
    full = [x for x, _ in _data()]
    halves = [x.chunk(2)[rank] for x in full]
    spec = xs.ShardingSpec(mesh, ("data", None, None), minibatch=True)
    for part in (torch.ones(3, 6, 16), torch.ones(4)):
        with pytest.raises(ValueError, match="no process has the global tensor"):
            spec.send(part, torch.device("xla"))
    model, reference = _block().to("xla"), _block()
    _fully_sharded(model)
    ours = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    with counts() as moved:
        for x, batch in zip(full, MpDeviceLoader(halves, "xla", input_sharding=spec), strict=True):
            assert batch.shape == x.shape and _spec(batch) == P("data", None, None)
            for network, optimizer, values in ((model, ours, batch), (reference, theirs, x)):
                optimizer.zero_grad()
                network(values).square().mean().backward()
                optimizer.step()
        torch_xla.sync()
    assert moved.compilations + moved["JobProgramsFetched"] == 2  # one of the processes compiles each program
    for got, want in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-5, atol=2e-6)
    part = _array(model.linear1.weight).addressable_shards
    assert [s.data.shape for s in part] == [(8, 16)] * 2, "a process has the rows of its local devices"


if __name__ == "__main__":
    job()
    print("rank done", flush=True)
