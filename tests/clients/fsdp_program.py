"""Trains a small Llama on several devices, by Fabric, accelerate or transformers' Trainer, and tells its losses.

python -m tests.clients.fsdp_program HOW FOLDER DEVICES

HOW is fabric, accelerate, accelerate-spmd, trainer, trainer-spmd, trainer-spmd-checkpointing, data or plain. Parameters
are in shards, but for ``data`` (each device has all of them) and ``plain`` (the CPU).
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from tests.clients import checks
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

STEPS, BATCH, LENGTH, WORDS, RATE, CLIP = 4, 8, 12, 64, 0.3, 0.5  # a batch of all devices together


def network() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def rows() -> list[dict[str, torch.Tensor]]:
    words = torch.randint(WORDS, (STEPS * BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row.clone()} for row in words]


def by_fabric(fabric: Any) -> None:
    model = fabric.setup_module(network())
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=RATE))
    loader = fabric.setup_dataloaders(DataLoader(rows(), batch_size=BATCH // fabric.world_size))  # type: ignore[arg-type]
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean"))
    _tell([float(loss) for loss in losses], model, fabric.global_rank)


def by_accelerate(spmd: bool) -> None:
    """accelerate shards nothing on xla: scripts wrap the model, and it clips by what the wrapper has for that."""
    import accelerate

    accelerator = accelerate.Accelerator()
    model = _wrapped(network().to(accelerator.device), spmd)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(rows(), batch_size=BATCH // accelerator.num_processes)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if spmd:
        loader._parallel_loader_kwargs["input_sharding"] = xs.ShardingSpec(xs.get_global_mesh(), ("fsdp", None))  # type: ignore[attr-defined]
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean"))
    _tell([float(loss) for loss in losses], model, accelerator.process_index)


def _wrapped(model: nn.Module, spmd: bool) -> nn.Module:
    if not spmd:
        return XlaFullyShardedDataParallel(model)
    devices = xr.global_runtime_device_count()
    xs.set_global_mesh(xs.Mesh(range(devices), (devices,), axis_names=("fsdp",)))
    return SpmdFullyShardedDataParallel(model)


class Trainer(transformers.Trainer):
    """transformers 5.23 makes no optimizer for a model that it has wrapped in FSDP of xla, and stops for want of it."""

    def _wrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        wrapped: nn.Module = super()._wrap_model(model, *args, **kwargs)
        if self.optimizer is None:
            self.create_optimizer(wrapped)
        return wrapped


def by_trainer(index: int, how: str, folder: str, devices: int) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=folder, per_device_train_batch_size=BATCH // devices, max_steps=STEPS, logging_steps=1, optim="sgd",
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=how == "plain", **_sharded(how),
    )  # fmt: skip
    trainer = Trainer(network(), arguments, train_dataset=rows())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model = trainer.model_wrapped
    _tell(losses, model, arguments.process_index)


def _sharded(how: str) -> dict[str, Any]:
    layers = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    chosen = {"xla": True, "xla_fsdp_v2": "spmd" in how, "xla_fsdp_grad_ckpt": "checkpointing" in how}
    return {} if how in ("plain", "data") else {"fsdp": True, "fsdp_config": chosen | layers}


def _tell(losses: list[float], model: nn.Module, rank: int) -> None:
    """Rank 0 tells; every rank checks where it has computed, ``plain`` the CPU being what was asked for."""
    devices = sorted({p.device.type for p in model.parameters()})
    if devices != ["cpu"]:
        checks.assert_nothing_on_the_cpu()
    if rank == 0:
        elements = sum(_held(p) for p in model.parameters())
        print(checks.tell({"losses": losses, "elements": elements, "devices": devices}), flush=True)


def _held(p: torch.Tensor) -> int:
    """How many elements of a parameter one device has."""
    sharding = xs.get_sharding(p) if p.device.type == "xla" else None
    return p.numel() if sharding is None else math.prod(sharding.shard_shape(tuple(p.shape)))


def main() -> None:
    how, folder, devices = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if "spmd" in how:
        xr.use_spmd()
    if how == "fabric":
        import lightning
        from lightning.fabric.strategies import XLAFSDPStrategy
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        strategy = XLAFSDPStrategy(auto_wrap_policy={LlamaDecoderLayer})
        lightning.Fabric(accelerator="tpu", devices=devices, strategy=strategy).launch(by_fabric)
    elif "accelerate" in how:
        by_accelerate("spmd" in how)
    elif how in ("trainer", "data"):
        xmp.spawn(by_trainer, args=(how, folder, devices))
    else:
        by_trainer(0, how, folder, 1)


if __name__ == "__main__":
    main()
