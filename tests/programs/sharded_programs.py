"""Sharded programs on one and on four CPU devices, compared with the CPU; run by test_sharded.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.support.helpers import counts
from torch_xla import interop
from torch_xla.distributed.spmd import debugging


def devices() -> int:
    """Return the number of devices."""
    return xr.global_runtime_device_count()


def grid(order: list[int] | None = None) -> xs.Mesh:
    """Return a mesh of two axes over the devices in the given order."""
    shape = (2, 2) if devices() == 4 else (devices(), 1)
    return xs.Mesh(order or range(devices()), shape, ("data", "model"))


def row(order: list[int] | None = None) -> xs.Mesh:
    """Return a mesh of one axis."""
    return xs.Mesh(order or range(devices()), (devices(),), ("fsdp",))


def _orders() -> list[list[int]]:
    return [[0, 1, 2, 3], [0, 1, 3, 2], [3, 1, 2, 0]] if devices() == 4 else [list(range(devices()))]


def layouts(rank: int) -> list[tuple[xs.Mesh, tuple[Any, ...]]]:
    """Return meshes of one and two axes in several device orders, with partition specs."""
    rest = (None,) * (rank - 1)
    out: list[tuple[xs.Mesh, tuple[Any, ...]]] = []
    for order in _orders():
        out += [(row(order), ("fsdp", *rest)), (grid(order), (("data", "model"), *rest))]
        out += [(grid(order), ("model", *rest))]
        out += (
            [(grid(order), ("model", "data", *rest[1:])), (row(order), (None, "fsdp", *rest[1:]))] if rank > 1 else []
        )
    return out


def layouts_of_mixed_orders(rank: int) -> list[tuple[xs.Mesh, tuple[Any, ...]]]:
    """Return each partition spec of ``layouts`` once, rotating through the device orders."""
    every, orders = layouts(rank), len(_orders())
    count = len(every) // orders
    return [every[number % orders * count + number] for number in range(count)]


#: Functions of a 7 by 5 tensor: reductions that visible padding would change, movements and selections.
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "prod": lambda x: x.prod(0),
    "mean": lambda x: x.mean(),
    "max": lambda x: (x - 10).max(1).values,
    "argmin": lambda x: (x + 10).argmin(0),
    "softmax": lambda x: x.softmax(0),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (5,)),
    "product": lambda x: x.t() @ x,
    "std": lambda x: x.std(),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0).values,
    "flip": lambda x: x.flip(0),
    "cat": lambda x: torch.cat([x, x[1:4]]),
    "reshape": lambda x: x.reshape(5, 7),
    "index": lambda x: x[torch.tensor([6, 0, 3]).to(x.device)],
    "reciprocal": lambda x: (1 / (x + 20)).sum(),
    "roll": lambda x: x.roll(2, 0),
    "pad": lambda x: nn.functional.pad(x, (1, 1, 2, 0), value=3.0),
}


def uneven() -> None:
    """7 by 5 over 4 devices: values and gradients equal the CPU's, and padding is never visible."""
    _check_uneven(layouts_of_mixed_orders(2))


def uneven_in_all_orders() -> None:
    """As ``uneven``, for each split over each order of the devices."""
    _check_uneven(layouts(2))


def _check_uneven(checked: list[tuple[xs.Mesh, tuple[Any, ...]]]) -> None:
    cpu = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    for mesh, spec in checked:
        leaf = cpu.clone().requires_grad_()
        x = xs.mark_sharding(cpu.to("xla"), mesh, spec).requires_grad_()
        got = {name: op(x) for name, op in OPS.items()}
        want = {name: op(leaf) for name, op in OPS.items()}
        sum(t.square().sum() for t in got.values() if t.is_floating_point()).backward()
        sum(t.square().sum() for t in want.values() if t.is_floating_point()).backward()
        torch_xla.sync()
        for name in OPS:
            torch.testing.assert_close(got[name].detach().cpu(), want[name].detach(), msg=f"{name} {spec}")
        torch.testing.assert_close(x.grad.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)
        assert xs.get_sharding(x.grad) == xs.get_sharding(x), "a gradient has the sharding of its tensor"
        assert torch.equal(torch.from_numpy(np.array(interop.to_jax(x.detach()))), cpu)


def writes() -> None:
    """In-place writes, writes through views and resharding preserve values and shardings."""
    for mesh, spec in layouts(2):
        cpu = torch.arange(35.0).reshape(7, 5)
        x = xs.mark_sharding(cpu.to("xla"), mesh, spec)
        first = xs.get_sharding(x)
        for _ in range(2):
            x[2:6].mul_(3), cpu[2:6].mul_(3)
            x.t()[1].add_(1), cpu.t()[1].add_(1)
            torch_xla.sync()
        assert xs.get_sharding(x) == first and torch.equal(x.cpu(), cpu)
        for other, way in layouts(2):
            xs.mark_sharding(x, other, way)
            assert torch.equal(x.cpu(), cpu)
        assert torch.equal(xs.clear_sharding(x), cpu)


def meshes_meet() -> None:
    """One program combines annotated and unannotated tensors, and tensors over all meshes."""
    w, x = torch.ones(128, 256, device="xla"), torch.ones(16, 128, device="xla")
    torch_xla.sync()
    xs.mark_sharding(x, grid(), ("data", None))
    assert torch.equal((x @ w).cpu(), torch.full((16, 256), 128.0))
    parts = [torch.randn(7, 5) for _ in layouts(2)]
    marked = [xs.mark_sharding(t.to("xla"), mesh, spec) for t, (mesh, spec) in zip(parts, layouts(2), strict=True)]
    for _ in range(2):  # the second iteration reads results of the first
        marked = [t + 1 for t in marked]
        parts = [t + 1 for t in parts]
        total, expected = torch.stack(marked).sum(0), torch.stack(parts).sum(0)
        torch_xla.sync()
        torch.testing.assert_close(total.cpu(), expected)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def _train(device: str, mark: Callable[[torch.Tensor], Any], kind: type[torch.optim.Optimizer]) -> Any:
    model = _net().to(device)
    for p in model.parameters():
        mark(p)
    optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
    for step in range(4):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch_xla.sync()
    return model, optimizer


def optimizers() -> None:
    """Parameters of 7 and 3 rows over 4 devices train as on the CPU; optimizer state has their sharding."""
    for kind in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        reference, _ = _train("cpu", lambda p: None, kind)
        with counts() as moved:
            model, optimizer = _train(
                "xla", lambda p: xs.mark_sharding(p, row(), ("fsdp", *(None,) * (p.dim() - 1))), kind
            )
        assert moved.compilations == 2, kind
        for p, want in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p.detach().cpu(), want.detach(), rtol=1e-5, atol=1e-6)
            kept = [t for t in optimizer.state[p].values() if t.shape == p.shape and p.dim() > 0]
            assert kept and all(xs.get_sharding(t) == xs.get_sharding(p) for t in (*kept, p.grad))


def memory() -> None:
    """Memory is counted per device."""
    before = xm.get_memory_info()["bytes_used"]
    x = xs.mark_sharding(torch.zeros(512, 1024).to("xla"), row(), ("fsdp", None))
    y = x + 1
    torch_xla.sync()
    assert xm.get_memory_info()["bytes_used"] - before in range(
        2 * (2 << 20) // devices(), 2 * (2 << 20) // devices() + 4096
    )
    assert y.sum().item() == 512 * 1024
    # Parameters annotated on the CPU are sharded during the upload: no device has a full parameter.
    before, highest = xm.get_memory_info()["bytes_used"], xm.get_memory_info()["peak_bytes_used"]
    layer = nn.Linear(1024, 3000, bias=False)
    expected, parameter = layer.weight.detach().clone(), layer.weight
    xs.mark_sharding(layer.weight, row(), ("fsdp", None))
    layer.to("xla")
    assert layer.weight is parameter and xs.get_sharding(parameter) == xs.get_sharding(x)
    assert xm.get_memory_info()["peak_bytes_used"] <= max(highest, before + expected.nbytes // devices() + 4096)
    assert torch.equal(parameter.detach().cpu(), expected)


def shards() -> None:
    """Methods of sharded tensors: local shards, which can be written, and XLA's text of the sharding."""
    cpu = torch.arange(35.0).reshape(7, 5)
    assert not hasattr(cpu, "local_shards") and not isinstance(cpu, xs.XLAShardedTensor)
    for mesh, spec in layouts(2):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = xs.mark_sharding(cpu.to(dtype).to("xla"), mesh, spec)
            assert isinstance(x, xs.XLAShardedTensor) and type(x) is torch.Tensor and x.global_tensor is x
            assert xs.wrap_if_sharded(x) is x and xs.unwrap_sharded_tensor(x) is x
            parts = x.local_shards
            assert [part.shard_device for part in parts] == [f"CPU:{i}" for i in range(devices())]
            assert len({part.data.shape for part in parts}) == 1
            for part in parts:
                index = ... if part.indices is ... else tuple(part.indices)
                assert torch.equal(part.unpadded_data, cpu.to(dtype)[index])
                part.unpadded_data = part.unpadded_data * 2
            x.load_local_shards_(parts)
            assert torch.equal(x.cpu(), cpu.to(dtype) * 2) and x.dtype == dtype
    p = nn.Parameter(xs.mark_sharding(cpu.to("xla"), row(), ("fsdp", None)))
    assert isinstance(p, xs.XLAShardedTensor) and type(p) is nn.Parameter
    with pytest.raises(ValueError, match="0 shards for"):
        p.load_local_shards_([])
    wrong = [xs.XLAShard(torch.zeros(9, 9), ..., "CPU:0", 0)] * devices()
    with pytest.raises(ValueError, match=r"shard 0 has shape \[9, 9\], expected"):
        p.load_local_shards_(wrong)
    with pytest.raises(AttributeError, match="no sharding"):
        (p.detach() + 1).local_shards  # noqa: B018


def names() -> None:
    """Methods of XLAShardedTensor, shardings without tensors, and visualizations."""
    x, mesh = torch.arange(24.0).reshape(4, 6).to("xla"), grid()
    xs.mark_sharding(x, mesh, ("data", "model"))
    kind: Any = xs.XLAShardedTensor
    assert kind(x) is x and kind.global_tensor.__get__(x) is x
    for name in ("sharding_spec", "sharding_type"):
        assert getattr(kind, name).__get__(x) == getattr(x, name)
    shards = kind.local_shards.__get__(x)
    for shard in shards:
        shard.data += 1
    kind.load_local_shards_(x, shards)
    assert x.cpu().flatten().tolist() == [i + 1.0 for i in range(24)]
    assert x.placements == kind.placements.__get__(x) == (Shard(0), Shard(1))
    x.invalidate_spec_cache()
    for spec in (("data", "model"), ("model", None), (None, None), (("data", "model"), None)):
        op_sharding = mesh.get_op_sharding(spec)
        xs.mark_sharding(x, mesh, spec)
        assert (str(op_sharding), op_sharding.type) == (x.sharding_spec, x.sharding_type), spec
        assert str(xs.ShardingSpec(mesh, spec).xla_spec(x)) == str(op_sharding)
        pictures = [draw(of, use_color=False) for draw, of in (
            (debugging.visualize_sharding, str(op_sharding)), (debugging.visualize_tensor_sharding, x))]  # fmt: skip
        if op_sharding.type is not xs.ShardingType.REPLICATED:
            cells = [[list(c.cells) for c in picture.columns] for picture in pictures]
            assert cells[0] == cells[1], spec
    assert xs.ShardingSpec(mesh, ("data",)).xla_spec(x) is None
    turned = debugging.visualize_sharding("{devices=[2,2]<=[2,2]T(1,0)}", use_color=False, min_width=20)
    assert [list(c.cells) for c in turned.columns] == [["CPU 0", "CPU 1"], ["CPU 2", "CPU 3"]]
    for bad in ("{devices=[2,2,2]0,1,2,3,4,5,6,7}", "{devices=[2,2]0,1}", "tiled"):
        with pytest.raises(ValueError, match="visualize_sharding"):
            debugging.visualize_sharding(bad)


def manual() -> None:
    """With manual sharding each device computes with its shard, without communication; values and gradients."""
    mesh = grid()
    xs.set_global_mesh(mesh)
    cpu, weight = torch.randn(8, 12), torch.randn(6, 5)
    expected, w = cpu.clone().requires_grad_(), weight.clone().requires_grad_()
    halves = [row.chunk(2, 1) for row in expected.chunk(2)]
    done = [torch.cat([torch.softmax(part @ w, 1) * (part.shape[0] + 1) for part in row], 1) for row in halves]
    full = torch.cat(done)
    full.square().sum().backward()
    x, v = (t.to("xla").requires_grad_() for t in (cpu, weight))
    for _ in range(2):
        x.grad = v.grad = None
        part = xs.enable_manual_sharding(x, ("data", "model"))
        assert part.shape == (4, 6)
        result = torch.softmax(part @ xs.enable_manual_sharding(v, (None, None)), 1) * (part.shape[0] + 1)
        y = xs.disable_manual_sharding(result, ("data", "model"), (8, 10), mesh=mesh)
        del part, result
        y.square().sum().backward()
        torch_xla.sync()
    torch.testing.assert_close(y.detach().cpu(), full.detach(), rtol=1e-4, atol=1e-5)
    assert expected.grad is not None and x.grad is not None and w.grad is not None and v.grad is not None
    torch.testing.assert_close(v.grad.cpu(), w.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(x.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-4)
    # A shard along one axis is replicated over the other; in-place ops, and ops with unsharded tensors.
    part = xs.enable_manual_sharding(x.detach(), (None, "model"))
    part[:, 0] = 1
    part.mul_(v.detach()[0, 0]).sub_(part.amax())
    z = xs.disable_manual_sharding(part, (None, "model"), (8, 12))
    del part
    split = [p.clone() for p in cpu.chunk(2, 1)]
    for p in split:
        p[:, 0] = 1
        p.mul_(weight[0, 0]).sub_(p.amax())
    torch.testing.assert_close(z.cpu(), torch.cat(split, 1), rtol=1e-4, atol=1e-5)
    kept = xs.enable_manual_sharding(x.detach(), ("data", None)) + 1
    with pytest.raises(RuntimeError, match="is still manually sharded at the end of the graph"):
        kept.cpu()
    del kept
    for call, words in (
        (
            lambda: xs.enable_manual_sharding(torch.ones(3, device="xla"), ("data",)),
            "is not divisible by the partition counts",
        ),
        (lambda: xs.disable_manual_sharding(x, ("data", None), (8, 12)), r"has shape \[4, 12\], got \[8, 12\]"),
        (lambda: xs.enable_manual_sharding(x, ("data", None), mesh=grid([0, 1, 3, 2])), "in order of their numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def words() -> None:
    """XLA's text for shardings, as upstream prints it."""
    kinds = xs.ShardingType
    for mesh, spec, text, kind in [
        (grid(), (None, None), "{replicated}", kinds.REPLICATED),
        (grid(), ("data", None), "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", kinds.PARTIAL),
        (grid(), (None, "model"), "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}", kinds.PARTIAL),
        (grid(), ("model", "data"), "{devices=[2,2]0,2,1,3}", kinds.TILED),
        (row([0, 1, 3, 2]), ("fsdp", None), "{devices=[4,1]0,1,3,2}", kinds.TILED),
    ]:
        x = xs.mark_sharding(torch.ones(8, 8).to("xla"), mesh, spec)
        assert (x.sharding_spec, x.sharding_type) == (text, kind)
    y = torch.ones(4, 4, device="xla") + 1
    xs.annotate_custom_sharding(y, grid(), ("data", None))
    assert y.sharding_spec.startswith("{devices=[2,1,2]") and y.sum().item() == 32


def linear() -> None:
    """EinsumLinear equals nn.Linear in values and gradients, and preserves the sharding of 3-D inputs."""
    cpu = _net()
    model = _net().to("xla")
    assert xs.apply_xla_patch_to_nn_linear(model) is model and type(model[0]) is xs.EinsumLinear
    xs.apply_backward_optimization_barrier(model[2])
    x = torch.randn(4, 6, 5)
    ours = xs.mark_sharding(x.to("xla"), grid(), ("data", "model", None)).requires_grad_()
    theirs = x.clone().requires_grad_()
    model(ours).square().sum().backward()
    cpu(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    for got, want in zip(model.parameters(), cpu.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), want.grad)
    with torch.autocast("xla", torch.bfloat16):
        assert model(ours).dtype == torch.bfloat16


def alike() -> None:
    """shard_as gives both the same sharding, in pytrees and with gradients."""
    a = xs.mark_sharding(torch.randn(8, 4).to("xla"), grid(), ("data", "model")).requires_grad_()
    b = torch.randn(8, 4, device="xla")
    torch_xla.sync()
    first, second = xs.shard_as({"x": a * 2, "n": 1}, {"x": b * 3, "n": 1})
    torch_xla.sync()
    assert xs.get_sharding(first["x"]) == xs.get_sharding(second["x"])
    (first["x"] * second["x"]).sum().backward()
    torch.testing.assert_close(a.grad.cpu(), 6 * b.cpu())
    with pytest.raises(ValueError, match="cannot have the same sharding"):
        xs.shard_as(a, b[:2])


def regions() -> None:
    """Shardings inside and outside of a torch_xla.compile region."""
    w = xs.mark_sharding(torch.randn(8, 8).to("xla"), grid(), (None, "model"))

    @torch_xla.compile(full_graph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        h = x @ w
        xs.mark_sharding(h, grid(), ("data", "model"))
        return h.relu()

    x = torch.randn(6, 8)
    y = step(xs.mark_sharding(x.to("xla"), grid(), ("data", None)))
    torch.testing.assert_close(y.cpu(), (x @ w.cpu()).relu())
    assert devices() == 1 or xs.get_sharding(y).spec == jax.sharding.PartitionSpec("data", "model")


def barrier() -> None:
    """xm.optimization_barrier_ preserves values, gradients and versions."""
    x = torch.randn(4, 4, device="xla", requires_grad=True)
    h = x.exp()
    y = h * h
    xm.optimization_barrier_([h, y])
    xm.optimization_barrier_([])
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * (2 * x.detach().cpu()).exp())
    with pytest.raises(ValueError, match="on cpu"):
        xm.optimization_barrier_([torch.ones(1)])


def switched_on(program: Callable[[], None]) -> None:
    """Run a program with SPMD."""
    xr.use_spmd()
    program()


#: On one device and on four; the second list on four only.
PROGRAMS: list[Callable[[], None]] = [
    uneven, writes, meshes_meet, optimizers, memory, shards, linear, alike, regions, barrier,
]  # fmt: skip
ON_FOUR: list[Callable[[], None]] = [words, names, manual]
#: On four devices, in the sweep.
LONG: list[Callable[[], None]] = [uneven_in_all_orders]
