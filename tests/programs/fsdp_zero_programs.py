"""FSDP and ZeRO over replicas, compared with the CPU; test_large_models.py spawns the processes."""

from __future__ import annotations

import functools
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from tests.programs.large_model_programs import Block
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import checkpoint_module, consolidate_sharded_state_dicts
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer


def _net() -> nn.Sequential:
    """A model with two blocks and two layers that share a weight."""
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    net[3].weight = net[2].weight
    return net


def _batch(step: int) -> torch.Tensor:
    """Return the batches of all replicas for a step."""
    return torch.randn(xr.world_size(), 4, 8, generator=torch.Generator().manual_seed(step))


#: Options of the wrapper; the last two are not options of FSDP.
WAYS: list[dict[str, Any]] = [
    {},
    {"flatten_parameters": True},
    {"shard_param_on_dim_0": True, "reshard_after_forward": False},
    {"compute_dtype": torch.bfloat16, "fp32_reduce_scatter": True},
    {"checkpointed": True},
]


def _wrapped(options: dict[str, Any]) -> nn.Module:
    model, rest = _net(), dict(options)
    if rest.pop("checkpointed", False):
        return FSDP(nn.Sequential(*(FSDP(checkpoint_module(b)) for b in model[:2]), model[2], model[3]))
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(model, auto_wrap_policy=policy, **rest)


def fsdp(rank: int) -> None:
    """Weights, gradient norms and consolidated checkpoints equal the CPU's with all options."""
    for options in WAYS:
        model, reference = _wrapped(options), _net()
        sharded_optimizer, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, reference))
        near = {"rtol": 0.2, "atol": 0.05} if "compute_dtype" in options else {"rtol": 1e-3, "atol": 1e-4}
        for step in range(3):
            x = _batch(step)
            theirs.zero_grad(), sharded_optimizer.zero_grad()
            (reference(x) - 1).square().mean().backward()
            expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
            (model(x[rank : rank + 1].to("xla")) - 1).square().mean().backward()
            norm = model.clip_grad_norm_(0.5)
            assert xm._fetch_gradients(sharded_optimizer) == [], "FSDP has reduced the gradients"
            theirs.step(), sharded_optimizer.step()
            torch_xla.sync()
            torch.testing.assert_close(norm.cpu(), expected, **near)
        share = sum(p.numel() for p in model.parameters())
        assert share < 1.5 * sum(p.numel() for p in reference.parameters()) / xr.world_size() + 128 * 20
        mine = pickle.dumps({name: t.cpu() for name, t in model.state_dict().items()})
        states = [pickle.loads(state) for state in xm.rendezvous("states", mine)]
        full = consolidate_sharded_state_dicts(states, model.get_shard_metadata())
        assert set(full) == set(reference.state_dict())
        for name, t in reference.state_dict().items():
            torch.testing.assert_close(full[name].float(), t, **near)
    assert model.clip_grad_norm_(1.0, math.inf).item() > 0
    with pytest.raises(RuntimeError, match="already wrapped"):
        FSDP(model)
    print(f"rank {rank} done", flush=True)


def zero(rank: int) -> None:
    """Weights equal the CPU's AdamW with clipping; each replica has its shard of the state; save and load."""
    model, reference = _net().to("xla"), _net()
    sharded_optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, max_norm=0.5, lr=0.01, save_master_weights=True
    )
    theirs = torch.optim.AdamW(reference.parameters(), lr=0.01)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (sharded_optimizer, theirs)]
    for step in range(4):
        x = _batch(step)
        theirs.zero_grad(), sharded_optimizer.zero_grad()
        (reference(x) - 1).square().mean().backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        (model(x[rank : rank + 1].to("xla")) - 1).square().mean().backward()
        theirs.step(), sharded_optimizer.step()
        torch_xla.sync()
        torch.testing.assert_close(sharded_optimizer.grad_norm.cpu(), expected, rtol=1e-3, atol=1e-4)
        for schedule in schedules:
            schedule.step()
        if step == 1:  # resume with another optimizer from the saved state
            saved = pickle.loads(pickle.dumps(xm._maybe_convert_to_cpu(sharded_optimizer.state_dict())))
            sharded_optimizer = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.AdamW, max_norm=0.5, save_master_weights=True, lazy_init=True
            )
            with pytest.raises(RuntimeError, match="init_zero"):
                sharded_optimizer.step()
            torch_xla.sync()
            sharded_optimizer.init_zero()
            sharded_optimizer.load_state_dict(saved)
            schedules[0].optimizer = sharded_optimizer
    for got, want in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-3, atol=1e-4)
    kept = next(iter(sharded_optimizer.base_optimizer.state.values()))["exp_avg"]
    assert kept.numel() == -(-model[0].norm.weight.numel() // xr.world_size())
    print(f"rank {rank} done", flush=True)
