"""torch's fully_shard with a device in each process, compared with the CPU; for test_large_models.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.debug.metrics as met
from tests.support.comparisons import Comparisons
from tests.support.helpers import counts
from torch_xla.distributed.spmd import _process_shards

WIDTH = 9  # not divisible by 2 or 4: of four shards the last is empty


class Block(nn.Module):
    def __init__(self, recompute: bool | None = None) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH), nn.LayerNorm(WIDTH)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x + self.down(torch.tanh(self._up(x))))
        return result

    def _up(self, x: torch.Tensor) -> torch.Tensor:
        """With ``recompute``, by a checkpoint inside the block; its value is ``use_reentrant``."""
        found: torch.Tensor = (
            self.up(x) if self.recompute is None else checkpoint(self.up, x, use_reentrant=self.recompute)
        )
        return found


class Net(nn.Module):
    """Two blocks; ``outside`` checkpoints each block as a whole, ``inside`` a layer in it."""

    def __init__(self, outside: bool | None = None, inside: bool | None = None) -> None:
        super().__init__()
        self.blocks, self.outside = nn.ModuleList(Block(inside) for _ in range(2)), outside
        self.head, self.tail = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.tail.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.outside is None else checkpoint(block, x, use_reentrant=self.outside)
        result: torch.Tensor = self.tail(self.head(x))
        return result


def _net(**options: Any) -> Net:
    torch.manual_seed(0)
    return Net(**options)


def _wrap(net: Net, **options: Any) -> Net:
    for block in net.blocks:
        fully_shard(block, **options)
    fully_shard(net, **options)
    return net


def _batch(step: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def _steps(net: nn.Module, batch: Callable[[int], torch.Tensor], count: int = 2) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), lr=0.05)
    for step in range(count):
        optimizer.zero_grad()
        for half in batch(step).chunk(2 if step else 1):
            net(half).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        torch_xla.sync()
    return optimizer


def _own(step: int) -> torch.Tensor:
    """This rank's rows of each half of the batch."""
    return _part(step, dist.get_rank(), dist.get_world_size())


def _part(step: int, rank: int, size: int) -> torch.Tensor:
    return torch.cat([half[rank::size] for half in _batch(step).chunk(2)])


def _full(value: Any) -> torch.Tensor:
    found: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found.detach().cpu()


def _compare(net: nn.Module, expected: nn.Module, tolerance: float = 2e-3) -> None:
    with Comparisons() as results:
        for parameter, reference in zip(net.parameters(), expected.parameters(), strict=True):
            assert isinstance(parameter, DTensor) and parameter.to_local().device.type == "xla"
            results.add(parameter.full_tensor(), reference, rtol=tolerance, atol=tolerance)


#: Options of fully_shard, and of the model.
WAYS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"reshard_after_forward": False}, {"outside": False}),
    ({"shard_placement_fn": lambda p: Shard(p.dim() - 1)}, {"outside": True}),
    ({}, {"inside": False}),
    ({}, {"inside": True}),
]


def training() -> None:
    """As on the CPU over all ranks' batches; each process holds its rows, and nothing runs on the CPU."""
    for options, model in WAYS if dist.get_world_size() > 1 else WAYS[:3]:
        net, expected = _wrap(_net(**model), **options), _net(**model)
        with counts() as moved:
            _train(net, _own, True in model.values())
        _train(expected, _batch, True in model.values())
        _compare(net, expected)
        assert not [name for name in moved if name.startswith("aten::")], moved
        rows = net.blocks[0].up.bias.to_local().shape[0]  # type: ignore[union-attr]
        assert rows == len(torch.arange(24).tensor_split(dist.get_world_size())[dist.get_rank()])


def _train(net: nn.Module, batch: Callable[[int], torch.Tensor], needs_grad: bool) -> None:
    """With ``needs_grad``, as reentrant checkpoints require, the backward pass reads the gradients of the batches."""
    _steps(net, lambda step: batch(step).requires_grad_(needs_grad))


def several_axes() -> None:
    """Copies of shards (2D meshes), and a submesh."""
    world = dist.get_world_size()
    mesh = init_device_mesh("xla", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    net, expected = _wrap(_net(), mesh=mesh), _net()
    assert all(p.placements == (Replicate(), Shard(0)) for p in net.parameters())  # type: ignore[attr-defined]
    _steps(net, _own)
    _steps(expected, _batch)
    _compare(net, expected)
    net = _wrap(_net(), mesh=mesh["shard"])  # each half trains alone, on the same batch
    rank, size = mesh.get_local_rank("shard"), world // 2
    _steps(net, lambda step: _part(step, rank, size))
    _compare(net, expected)
    dtensors = distributed_linear(mesh)
    with pytest.raises(NotImplementedError, match=r"already a DTensor.*use_spmd"):
        fully_shard(dtensors, mesh=mesh["shard"])


def distributed_linear(mesh: Any) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(nn.Linear(4, 4).to("xla"), mesh["replicate"], ColwiseParallel())


def mixed_precision() -> None:
    """Parameters, inputs, the reduction and outputs in the policy's dtypes; parameters and gradients stay float32."""
    net, seen = _net(), []
    for part in (*net.blocks, net):
        output = torch.float32 if part is net else None
        fully_shard(part, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=output))
    net.head.register_forward_pre_hook(lambda layer, args: seen.append((args[0].dtype, layer.weight.dtype)))
    y = net(_own(0).to("xla"))
    y.square().mean().backward()
    assert seen == [(torch.bfloat16, torch.bfloat16)] and y.dtype == torch.float32
    expected = _net()
    expected(_batch(0)).square().mean().backward()
    gradients = []
    for parameter in net.parameters():
        assert parameter.dtype == torch.float32 and isinstance(parameter.grad, DTensor)
        assert parameter.grad.placements == (Shard(0),)
        gradients.append(parameter.grad.full_tensor())
    torch_xla.sync()
    for gradient, reference in zip(gradients, expected.parameters(), strict=True):
        assert reference.grad is not None
        assert (gradient.cpu() - reference.grad).norm() <= 0.05 * reference.grad.norm() + 0.01


def methods() -> None:
    """unshard, reshard, deferred initialization, frozen parameters, buffers, errors."""
    net = _net()
    net.blocks[0].register_buffer("scale", torch.ones(2))
    net.blocks[0].requires_grad_(False)
    _wrap(net)
    assert isinstance(net, FSDPModule) and isinstance(net.blocks[0], FSDPModule) and net.blocks[0].scale.is_xla  # type: ignore[union-attr]
    net.unshard()
    assert not isinstance(net.head.weight, DTensor) and net.head.weight.shape == (WIDTH, WIDTH)
    assert isinstance(net.blocks[0].up.weight, DTensor)
    assert isinstance(net.state_dict()["head.weight"], DTensor) and isinstance(net.head.weight, DTensor)
    handle = net.unshard(async_op=True)
    assert handle is not None
    handle.wait()
    net.reshard()
    assert isinstance(net.head.weight, DTensor)
    before = _full(net.blocks[0].up.weight)
    _steps(net, _own, 1)
    assert torch.equal(_full(net.blocks[0].up.weight), before) and net.blocks[0].up.weight.grad is None
    net.set_requires_gradient_sync(False)
    net.set_gradient_divide_factor(1.0)
    with pytest.raises(NotImplementedError, match="set_all_reduce_hook"):
        net.set_all_reduce_hook(lambda grad: None)
    with pytest.raises(ValueError, match="scalar parameters"):
        fully_shard(nn.ParameterList([nn.Parameter(torch.ones(()))]))
    with torch.device("meta"):
        deferred = _wrap(Net())
    deferred.to_empty(device="xla")
    for layer in deferred.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert 0 < _full(deferred.head.weight).abs().max() < 1 and _full(deferred.blocks[0].norm.weight).sum() == WIDTH
    with torch.no_grad():
        assert torch.isfinite(deferred(_own(0))).all()


def checkpoints(folder: str) -> None:
    """State dictionaries of torch.distributed.checkpoint, saved here and restored into a new model."""
    net = _wrap(_net())
    optimizer = _steps(net, _own)
    model_state, optimizer_state = get_state_dict(net, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    restored = _wrap(Net())
    other = _steps(restored, _own, 1)
    model_state, optimizer_state = get_state_dict(restored, other)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_model_state_dict(restored, model_state)
    expected = copy.deepcopy(_net())
    _steps(expected, _batch)
    _compare(restored, expected)


def programs_and_sizes() -> None:
    """Steps after the second compile nothing; between steps a process holds its shards only."""
    net = _wrap(_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        if step == 3:
            before = _compilations()
        net(_own(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync(wait=True)
    assert _compilations() == before
    held = sum(p.to_local().numel() for p in net.parameters())  # type: ignore[attr-defined]
    assert torch.xla.memory_allocated() < 4 * held + 4 * 8 * WIDTH * 3, (torch.xla.memory_allocated(), held)  # type: ignore[attr-defined]


def _compilations() -> int:
    data = met.metric_data("CompileTime")
    return 0 if data is None else data[0]


def everything(index: int, folder: str) -> None:
    """One process of a job."""
    dist.init_process_group("xla", init_method="xla://")
    assert _process_shards.mesh_axis(init_device_mesh("xla", (dist.get_world_size(),)), 0).groups is None
    parts: list[Callable[[], None]] = [
        programs_and_sizes,
        training,
        mixed_precision,
        methods,
        partial(checkpoints, folder),
    ]
    if dist.get_world_size() > 1:
        parts.append(several_axes)
    for part in parts:
        part()
    print("done")
    dist.destroy_process_group()
