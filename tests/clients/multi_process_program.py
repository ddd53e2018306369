"""Trains with TRL, peft and sentence-transformers and evaluates with torchmetrics on several devices; all ranks tell.

python -m tests.clients.multi_process_program FOLDER DEVICES

With 0 devices it does so on the CPU, with the batches of all devices in one: what the others are compared with.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import torch_xla.distributed.xla_backend  # noqa: F401 - registers the backend and xla://
import torch_xla.distributed.xla_multiprocessing as xmp
from tests.clients import checks, tiny_trainers

ROWS = 31  # of what is evaluated: the last ranks have fewer

#: States that are added, of one number and of many; that are reduced otherwise; that are lists, of other lengths.
METRICS = ("Accuracy", "AUROC", "MeanSquaredError", "PearsonCorrCoef", "SpearmanCorrCoef")


def trained(trainer: Any, devices: int) -> dict[str, Any]:
    """The losses, and one number of all parameters, which is the same for all ranks."""
    with checks.on_xla(trainer.model) if devices else contextlib.nullcontext():
        trainer.train()
    mass = sum(p.detach().cpu().double().abs().sum().item() for p in trainer.model.parameters())
    return {"losses": tiny_trainers.losses_of(trainer), "mass": mass}


def options(devices: int) -> dict[str, Any]:
    return {"per_device_train_batch_size": tiny_trainers.BATCH // max(devices, 1), "use_cpu": not devices}


def sft(folder: Path, rank: int, devices: int) -> dict[str, Any]:
    return trained(tiny_trainers.sft(folder, **options(devices)), devices)


def lora(folder: Path, rank: int, devices: int) -> dict[str, Any]:
    """In bfloat16, that is: under autocast, with parameters in float32."""
    trainer, seen = tiny_trainers.lora(folder, bf16=True, **options(devices)), set()
    keep: Callable[..., None] = lambda module, inputs, output: seen.add(str(output.dtype))
    trainer.model.get_submodule("base_model.model.lm_head").register_forward_hook(keep)
    learning = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    return trained(trainer, devices) | {"computed": sorted(seen), "adapters": all("lora_" in n for n in learning)}


def sentences(folder: Path, rank: int, devices: int) -> dict[str, Any]:
    """The loss of each rank is against the rows of all, which torch.distributed gathers, with gradients."""
    model = tiny_trainers.sentence_transformer(folder.parent, None if devices else "cpu")
    return trained(tiny_trainers.sentences(folder, model, **options(devices)), devices)


def metrics(folder: Path, rank: int, devices: int) -> dict[str, Any]:
    """Each rank updates with its rows; the result is that of all rows."""
    torchmetrics = checks.library("torchmetrics")
    generator = torch.Generator().manual_seed(0)
    scores, numbers = torch.randn(ROWS, 5, generator=generator).softmax(-1), torch.randn(2, ROWS, generator=generator)
    mine, device = range(rank, ROWS, max(devices, 1)), "xla" if devices else "cpu"
    found = {}
    for name in METRICS:
        chosen, known = tiny_trainers.METRICS[name]
        metric = getattr(torchmetrics, name)(**chosen).to(device)
        with checks.counts() as moved:
            for some in (mine[:3], mine[3:]):
                rows = torch.tensor(some)
                pair = (scores[rows], rows % 5) if chosen else (numbers[0][rows], numbers[1][rows])
                metric.update(*(values.to(device) for values in pair))
            result = metric.compute()
        assert result.device.type == device and moved.fallbacks <= known, (name, result.device, moved.fallbacks)
        found[name] = result.flatten().tolist()
    return found


def work(index: int, folder: str, devices: int) -> None:
    told: dict[str, Any] = {"rank": index}
    for job in (sft, lora, sentences, metrics):
        if job is sentences and devices:  # those before need no process group, this and those after it do
            dist.init_process_group("xla", init_method="xla://")
        told[job.__name__] = job(Path(folder, str(index)), index, devices)
    print(checks.tell(told), flush=True)


def main() -> None:
    folder, devices = sys.argv[1], int(sys.argv[2])
    tiny_trainers.save_bert(Path(folder))
    if devices:
        xmp.spawn(work, args=(folder, devices))
    else:
        work(0, folder, devices)


if __name__ == "__main__":
    main()
