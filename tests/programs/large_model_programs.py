"""FSDP, tensor parallelism, memory and checkpoints on one and on four CPU devices; run by test_large_models.py."""

from __future__ import annotations

import functools
import json
import os
import signal
import struct
import tempfile
import time
import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils import checkpoint as torch_checkpoint
from torch.utils._pytree import register_pytree_node

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from tests.programs.sharded_programs import devices, row
from tests.support.helpers import counts
from torch_xla._engine.graph import program_info
from torch_xla._engine.lowering import RULES
from torch_xla.distributed import xla_backend
from torch_xla.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch_xla.experimental import distributed_checkpoint as xc
from torch_xla.experimental.distributed_checkpoint import _checksummed_storage, _remote_tier
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
from torch_xla.experimental.stablehlo_custom_call import place_to_device, place_to_host
from torch_xla.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer block without attention."""

    def __init__(self, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.w1, self.w2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.w2(nn.functional.gelu(self.w1(self.norm(x)))))


def net(width: int = 8, blocks: int = 2, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(Block(width) for _ in range(blocks)), nn.Linear(width, 5))


def train(model: nn.Module, device: str, mark: Callable[[torch.Tensor], Any] = lambda t: None) -> list[float]:
    """Train four steps and return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(4):
        x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(step)).to(device)
        mark(x)
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def same_as_cpu(model: nn.Module, mark: Callable[[torch.Tensor], Any] = lambda t: None) -> None:
    """Train the model on xla and net(), which has the same initial weights, on the CPU; compare them."""
    reference = net()
    assert train(model, "xla", mark) == pytest.approx(train(reference, "cpu"), rel=1e-4)
    for got, want in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-3, atol=1e-4)


def spmd_fsdp() -> None:
    """SpmdFullyShardedDataParallel, nested by both policies: sharded parameters, losses and weights equal the CPU's."""
    mesh = xs.Mesh(range(devices()), (devices(), 1), ("fsdp", "tensor"))
    with pytest.raises(ValueError, match="pass a mesh"):
        SpmdFullyShardedDataParallel(net())
    with pytest.raises(ValueError, match="no axis named 'fsdp'"):
        SpmdFullyShardedDataParallel(net(), mesh=xs.get_1d_mesh("data"))
    xs.set_global_mesh(mesh)
    by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    by_size = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    for policy in (None, by_class, by_size):
        model = SpmdFullyShardedDataParallel(net(), auto_wrap_policy=policy)
        assert isinstance(model[0], SpmdFullyShardedDataParallel) == (policy is by_class)
        same_as_cpu(model, lambda t: xs.mark_sharding(t, mesh, ("fsdp", None, None)))
        assert all(p.sharding_spec == "{replicated}" for p in model.parameters()) == (devices() == 1)
    with pytest.raises(RuntimeError, match="already wrapped"):
        SpmdFullyShardedDataParallel(model)
    with pytest.raises(RuntimeError, match="shard_output"):
        SpmdFullyShardedDataParallel(_Dict())(torch.ones(1, device="xla"))


class _Dict(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": x}


def _mesh() -> Any:
    shape = (2, 2) if devices() == 4 else (1, 1)
    return init_device_mesh("xla", shape, mesh_dim_names=("dp", "tp"))


def torch_words() -> None:
    """parallelize_module over one axis and fully_shard over the other, on a DeviceMesh of xla."""
    mesh, model = _mesh(), net()
    for block in (model[0], model[1]):
        plan = {
            "norm": SequenceParallel(),
            "w1": ColwiseParallel(input_layouts=Shard(1)),
            "w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    assert fully_shard(model, mesh=mesh["dp"]) is model
    assert isinstance(model, FSDPModule) and isinstance(model[0], FSDPModule) and isinstance(model[0], Block)
    model.set_requires_gradient_sync(False)
    model.unshard(async_op=True).wait()
    same_as_cpu(model)
    if devices() == 4:
        assert model[0].w1.weight.sharding_spec == "{devices=[4,1]0,2,1,3}"
        assert model[0].w2.weight.sharding_spec == "{devices=[2,2]0,1,2,3}"


def fsdp2() -> None:
    """fully_shard with a mixed precision policy."""
    model = net()
    for block in (model[0], model[1]):
        fully_shard(block)
    fully_shard(model)
    same_as_cpu(model, lambda t: xs.mark_sharding(t, xs.get_1d_mesh("fsdp"), ("fsdp", None, None)))
    half = fully_shard(net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
    x = torch.randn(2, 3, 8)
    y = half(x.to("xla"))
    expected = net().to(torch.bfloat16)(x.to(torch.bfloat16)).float()
    assert y.dtype == torch.float32 and half[0].w1.weight.dtype == torch.float32
    torch.testing.assert_close(y.detach().cpu(), expected.detach(), rtol=0.05, atol=0.05)
    y.sum().backward()
    assert half[0].w1.weight.grad.dtype == torch.float32
    with pytest.raises(ValueError, match="offload_policy"):
        fully_shard(net(), offload_policy=CPUOffloadPolicy())


class _Nested(nn.Module):
    """Takes and returns instances of a registered pytree class, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, given: UserDict[str, torch.Tensor]) -> UserDict[str, torch.Tensor]:
        self.seen.append(given["x"].dtype)
        return UserDict({"y": self.linear(given["x"].to(self.linear.weight.dtype)), "n": given["n"]})


def fsdp2_policies() -> None:
    """Each field of a MixedPrecisionPolicy has its documented effect, or warns at the user's line."""
    register_pytree_node(
        UserDict, lambda d: (list(d.values()), list(d)), lambda v, keys: UserDict(zip(keys, v, strict=True))
    )
    half, full = torch.bfloat16, torch.float32
    given = lambda: UserDict({"x": torch.randn(4, 8).to("xla"), "n": torch.arange(3).to("xla")})
    for cast_inputs, param, output in ((True, half, full), (False, half, None), (True, None, half)):
        policy = MixedPrecisionPolicy(param, None, output, cast_inputs)
        model = fully_shard(_Nested(), mp_policy=policy)
        out = model(given())
        assert model.seen == [half if cast_inputs and param else full]
        assert out["y"].dtype == (output or param or full) and out["n"].dtype == torch.int64
        out["y"].float().sum().backward()
        assert model.linear.weight.dtype == model.linear.weight.grad.dtype == full
    for param, reduce, warned in (
        (half, full, True), (None, half, True), (half, half, False), (None, full, False), (half, None, False)
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            fully_shard(_Nested(), mp_policy=MixedPrecisionPolicy(param, reduce))
        matching = [w for w in found if "reduce_dtype" in str(w.message)]
        assert len(matching) == warned and all(w.filename == __file__ for w in matching), found


def dtensor() -> None:
    """DTensor methods: from_local, redistribute, full_tensor, placements; values and gradients."""
    mesh, cpu = _mesh(), torch.randn(7, 6)
    t = distribute_tensor(cpu, mesh, [Shard(0), Shard(1)])
    assert t.placements == (Shard(0), Shard(1)) and t.device_mesh is mesh and t.to_local() is t
    t.requires_grad_()
    moved = t.redistribute(mesh, [Replicate(), Shard(0)])
    (
        moved.full_tensor() * DTensor.from_local(torch.ones(6), mesh, [Replicate(), Replicate()])
    ).square().sum().backward()
    torch.testing.assert_close(t.grad.cpu(), 2 * cpu)
    assert moved.placements == (Replicate(), Shard(0)) and torch.equal(moved.full_tensor().detach().cpu(), cpu)
    assert not hasattr(cpu, "full_tensor") and not hasattr(torch.ones(1, device="xla"), "placements")


def _temporaries() -> list[int]:
    """Collect the temporary bytes of each program compiled from now on."""
    found: list[int] = []
    original = program_info.program_sizes

    def sizes(compiled: Any, *rest: Any) -> Any:
        found.append(compiled.memory_analysis().temp_size_in_bytes)
        return original(compiled, *rest)

    program_info.program_sizes = sizes
    return found


#: Ways to compute a block: what it is, and whether its activations are to be forgotten.
WAYS: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "plain": (lambda block, x: block(x), False),
    "ours": (checkpoint, True),
    "ours, not reentrant": (lambda block, x: checkpoint(block, x, use_reentrant=False), True),
    "torch": (lambda block, x: torch_checkpoint.checkpoint(block, x, use_reentrant=True), True),
    "torch, not reentrant": (lambda block, x: torch_checkpoint.checkpoint(block, x, use_reentrant=False), True),
}


def rematerialization() -> None:
    """Rematerialization uses at most 0.45 of the temporary bytes, and has equal values and gradients with dropout."""
    temporaries, results = _temporaries(), {}
    for name, (way, _) in WAYS.items():
        torch.manual_seed(0)
        blocks = [Block(64, 0.1).to("xla") for _ in range(6)]
        x = torch.randn(512, 64).to("xla").requires_grad_()
        torch.manual_seed(7)
        h: Any = x
        for block in blocks:
            h = way(block, h)
        h.square().mean().backward()
        del h
        torch_xla.sync()
        results[name] = temporaries[-1], x.grad.cpu(), blocks[0].w1.weight.grad.cpu()
    most = results["plain"][0]
    for name, (_, forgets) in WAYS.items():
        assert not forgets or results[name][0] < 0.45 * most, f"{name}: {results[name][0]} of {most} bytes"
        torch.testing.assert_close(results[name][1:], results["plain"][1:], msg=name)
    with pytest.raises(ValueError, match="unexpected keyword arguments"):
        checkpoint(blocks[0], x, what=1)


def offload() -> None:
    """Activation offloading to the host: values and gradients."""
    x = torch.randn(16, 8)
    offloaded, expected = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    kept = place_to_host(offloaded.exp())
    ((offloaded * 2).sum() + place_to_device(kept).square().sum()).backward()
    ((expected * 2).sum() + expected.exp().square().sum()).backward()
    torch.testing.assert_close(offloaded.grad.cpu(), expected.grad)
    torch.testing.assert_close(kept.detach().cpu(), x.exp())
    # Programs contain the memory kind of each value; on the CPU, both memories are the same.
    text = torch_xla._XLAC._get_xla_tensors_hlo([place_to_device(place_to_host(offloaded.detach() + 1))])
    is_annotated = jax.__version_info__ >= (0, 10, 2)  # before, programs for the CPU have no annotations
    assert text.count("annotate_device_placement") == 2 * is_annotated
    assert ('_xla_buffer_placement="pinned_host"' in text) == is_annotated
    place = RULES["torch_xla::to_memory_kind"].function
    traced = jax.jit(lambda x: place(place(x * 3, True), False) + 1).trace(jax.ShapeDtypeStruct((8,), "float32"))
    for platform in ("cpu", "cuda", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert text.count("annotate_device_placement") == 2 * (is_annotated or platform != "cpu")
        assert ("pinned_host" in text) == (is_annotated or platform != "cpu")
    with pytest.raises(ValueError, match="on cpu"):
        place_to_host(x)


def _state(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to("xla")
    for p in model.parameters():
        xs.mark_sharding(p, row(), ("fsdp", *(None,) * (p.dim() - 1)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)).to("xla")
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    return loss.item()


def checkpoint_run(path: str, steps: int, preemption: bool = True) -> list[float]:
    """Resume from the last checkpoint, if any, and return the losses by step."""
    manager = xc.CheckpointManager(path, save_interval=2, max_to_keep=3, chkpt_on_preemption=preemption)
    model, optimizer = _state(0)
    state: dict[str, Any] = {"model": model.state_dict(), "step": 0, "losses": []}
    if manager.all_steps():
        xc.prime_optimizer(optimizer)
        state["optimizer"] = optimizer.state_dict()
        manager.restore(manager.all_steps()[-1], state)
        optimizer.load_state_dict(state["optimizer"])
    for step in range(state["step"] + 1, steps + 1):
        state["losses"].append(_step(model, optimizer, step))
        state |= {"step": step, "optimizer": optimizer.state_dict()}
        manager.save_async(step, state)
    manager.join()
    return list(state["losses"])


def checkpoint_job(path: str, steps: int, kill_at: int) -> None:
    """One process of an SPMD job; the last process is killed after writing its part of a checkpoint.

    Process 0 is the last one to start a save: it must not take what the others write for what a failed save left.
    """
    xr.use_spmd()
    with pytest.raises(RuntimeError, match="init_process_group"):
        xc.CheckpointManager(path, save_interval=2)
    dist.init_process_group("gloo", init_method="xla://")
    assert xla_backend.ProcessGroupXla is not None
    plain = _checksummed_storage._Writer.write_data

    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        done = plain(self, plan, planner)
        if Path(self.path).name == f".{kill_at}.writing" and xr.process_index() == xr.process_count() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def save_late(self: Any, step: int, values: Any) -> None:
        time.sleep(0.2 if self._is_first() else 0)
        save(self, step, values)

    def remove(self: Any, path: str, **options: Any) -> None:
        assert not path.endswith(".writing"), f"process 0 deletes {path}, which other processes write"
        plain_remove(self, path, **options)

    save, plain_remove = _remote_tier.RemoteTier.save, LocalFileSystem.rm
    _remote_tier.RemoteTier.save, LocalFileSystem.rm = save_late, remove
    _checksummed_storage._Writer.write_data = write_data
    losses = checkpoint_run(path, steps, preemption=not kill_at)
    Path(f"{path}.losses.{xr.process_index()}").write_text(json.dumps(losses))


def checkpoints() -> None:
    """Saved in the background and restored into a new model, the run continues with equal losses."""
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = checkpoint_run(f"{folder}/whole", 8)
        assert checkpoint_run(f"{folder}/parts", 4) == uninterrupted[:4]
        assert checkpoint_run(f"{folder}/parts", 8) == pytest.approx(uninterrupted, rel=1e-5)
        manager = xc.CheckpointManager(f"{folder}/parts", save_interval=3, max_to_keep=2)
        assert manager.all_steps() == [4, 6, 8] and not manager.save(10, {}) and not manager.reached_preemption(10)
        model, _ = _state(0)
        assert manager.save(10, {"model": model.state_dict()}, force=True) and manager.all_steps() == [8, 10]
        assert manager.save_async(12, {"model": model.state_dict()})
        manager.join()
        with pytest.raises(ValueError, match=r"untracked step 4. Valid steps are: \[10, 12\] \(in .*/parts\)"):
            manager.restore(4, {})
        empty = xc.CheckpointManager(f"{folder}/empty", save_interval=3)
        with pytest.raises(ValueError, match=r"Valid steps are: \[\] \(.*/empty has no complete checkpoint\)"):
            empty.restore(4, {})
        saved = {name: t.cpu() for name, t in model.state_dict().items()}
        fresh, _ = _state(1)
        manager.restore(12, {"model": fresh.state_dict()})
        assert all(torch.equal(t.cpu(), saved[name]) for name, t in fresh.state_dict().items())
        plain = {"model": {name: torch.zeros_like(t) for name, t in saved.items()}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns about a single process
            dcp.load(plain, checkpoint_id=f"{folder}/parts/12", no_dist=True)
        assert all(torch.equal(t, saved[name]) for name, t in plain["model"].items()), "torch alone reads it"
        for name in (".metadata", "__0_0.distcp"):
            _damaged(manager, Path(folder) / "parts" / "12" / name, {"model": fresh.state_dict()})


def _damaged(manager: xc.CheckpointManager, file: Path, state: Any) -> None:
    """A truncated, changed or missing file raises an error with its name."""
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], good[:40] + bytes([good[40] ^ 1]) + good[41:]):
        file.write_bytes(bad)
        with pytest.raises(xc.CheckpointError, match=f"{file}(: checksum mismatch| is corrupt).* is step 10: restore"):
            manager.restore(12, state)
    other = file.parents[1] / "10" / file.name
    other.rename(other.with_suffix(".aside"))
    with pytest.raises(xc.CheckpointError, match="/parts has no other intact checkpoint"):
        manager.restore(12, state)
    other.with_suffix(".aside").rename(other)
    file.unlink()
    with pytest.raises(
        (xc.CheckpointError, ValueError), match=f"{file} is missing" if "distcp" in file.name else "untracked"
    ):
        manager.restore(12, state)
    file.write_bytes(good)
    manager.restore(12, state)


def fsspec_paths() -> None:
    """A checkpoint under a URL."""
    model, _ = _state(0)
    manager = xc.CheckpointManager("memory://run", save_interval=1, max_to_keep=2)
    for step in range(1, 4):
        manager.save(step, {"model": model.state_dict()})
    assert manager.all_steps() == [2, 3]
    fresh, _ = _state(1)
    manager.restore(3, {"model": fresh.state_dict()})
    for got, want in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(got.detach().cpu(), want.detach().cpu())


def priming() -> None:
    """prime_optimizer creates the state of a first step and changes nothing else."""
    model, optimizer = _state(0)
    before = [p.detach().cpu() for p in model.parameters()]
    xc.prime_optimizer(optimizer)
    torch_xla.sync()
    for p, value in zip(model.parameters(), before, strict=True):
        state = optimizer.state[p]
        assert torch.equal(p.detach().cpu(), value) and p.grad is None and float(state["step"]) == 0
        assert xs.get_sharding(state["exp_avg"]) == xs.get_sharding(p) and not state["exp_avg"].any()
    with pytest.raises(RuntimeError, match="already has state"):
        xc.prime_optimizer(optimizer)


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a file in Hugging Face's format."""
    header, data = {}, b""
    for name, t in tensors.items():
        kind = {torch.float32: "F32", torch.bfloat16: "BF16"}[t.dtype]
        piece = t.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def safetensors() -> None:
    """A model on meta is sharded, allocated and loaded: no program and no transfer has an unsharded tensor."""
    torch.manual_seed(3)
    tensors = {"weight": torch.randn(103, 64).to(torch.bfloat16), "bias": torch.randn(103)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        write_safetensors(file, tensors)
        with torch.device("meta"):
            model = nn.Linear(64, 103)
        xs.mark_sharding(model.weight, row(), ("fsdp", None))
        xs.mark_sharding(model.bias, row(), ("fsdp",))
        model.to_empty(device="xla")
        nn.init.ones_(model.bias)  # written before any program has run
        torch_xla.sync()
        with counts():
            xc.load_safetensors(model.state_dict(), folder)
        for name, t in model.state_dict().items():
            assert torch.equal(t.cpu(), tensors[name].to(t.dtype))
            assert len({str(s.indices) for s in t.local_shards}) == devices()
        with pytest.raises(KeyError, match="lacks more"):
            xc.load_safetensors({"more": model.weight.detach()}, folder)
        with pytest.raises(ValueError, match=r"bias has shape \[103\], expected \[103, 64\]"):
            xc.load_safetensors({"bias": model.weight.detach()}, folder)
        file.write_bytes(file.read_bytes()[:-10])
        with pytest.raises(xc.CheckpointError, match=f"{file} is corrupt"):
            xc.load_safetensors(model.state_dict(), folder)


PROGRAMS: list[Callable[[], None]] = [
    spmd_fsdp, torch_words, fsdp2, fsdp2_policies, dtensor, rematerialization, offload, checkpoints, fsspec_paths,
    priming, safetensors,
]  # fmt: skip
