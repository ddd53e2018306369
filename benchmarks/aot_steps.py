"""Training steps in torch, looked at as torch_xla.aot looks at scripts: the other side of benchmarks/aot.py.

    python -m benchmarks.aot_steps v5e:4x4 GPT-2

Batches and parameters are shared out over all chips (FSDP, SPMD). Nothing is computed; the program of a step is
compiled for the target, and what is counted of it is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import torch_xla.runtime as xr
from benchmarks import models
from torch_xla._engine.aot import program_collector, targets
from torch_xla._engine.device import abstract_device
from torch_xla.aot import command, report_data

#: Which dimension of a parameter is sharded over a number of chips; None: replicated.
Split = Callable[[Sequence[int], int], int | None]


def first_that_divides(shape: Sequence[int], chips: int) -> int | None:
    return next((axis for axis, size in enumerate(shape) if size % chips == 0), None)


def width(of: int) -> Split:
    """The dimension of that size, if the chips divide it."""
    return lambda shape, chips: list(shape).index(of) if of in shape and len(shape) > 1 and of % chips == 0 else None


@dataclass(frozen=True)
class Job:
    """A model to train. ``batch`` makes the batch for n chips; the inputs of the modules ``spread`` are annotated."""

    model: Callable[[], nn.Module]
    batch: Callable[[int], tuple[Tensor, Tensor]]
    optimizer: Callable[..., Optimizer]
    dtype: torch.dtype
    split: Split
    spread: Callable[[Any], Sequence[nn.Module]] = lambda model: ()


_MOMENTUM = partial(SGD, lr=0.05, momentum=0.9)
JOBS = {
    "LeNet": Job(
        models.LeNet, lambda chips: models.images(64 * chips, 1, 28), _MOMENTUM, torch.float32, first_that_divides
    ),
    "ResNet-50": Job(
        lambda: models.ResNet(50, classes=1000), lambda chips: models.images(128, 3, 224, 1000), _MOMENTUM,
        torch.bfloat16, first_that_divides, lambda model: list(model.stages),
    ),
    "GPT-2": Job(
        lambda: models.GPT(12, 768, 12, 50257, 1024), lambda chips: models.text(8 * chips, 1024, 50257),
        partial(AdamW, lr=1e-3), torch.bfloat16, width(768), lambda model: [*model.blocks, model.norm],
    ),
}  # fmt: skip


def steps_of(job: Job, chips: int) -> Callable[[], object]:
    """What runs a step on the xla device, when parameters and the optimizer's state are there."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(range(chips), (chips,), ("fsdp",)) if chips > 1 else None

    def layout(rank: int, axis: int | None) -> tuple[str | None, ...]:
        return tuple("fsdp" if axis == place else None for place in range(rank))

    def mark(tensor: Tensor, axis: int | None) -> None:
        if mesh is not None:
            xs.mark_sharding(tensor, mesh, layout(tensor.dim(), axis))

    def spread(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]
        return (x if mesh is None else xs.mark_sharding_with_gradients(x, mesh, layout(x.dim(), 0)), *args[1:])

    with torch.device("xla"):
        model = job.model().to(job.dtype)
    optimizer = job.optimizer(model.parameters())
    shard_states(model, optimizer, lambda tensor: mark(tensor, axis_of(job.split, tensor.shape, chips)))
    for module in job.spread(model):
        module.register_forward_pre_hook(spread)
    inputs, targets = (tensor.to("xla") for tensor in job.batch(chips))
    inputs = inputs.to(job.dtype) if inputs.is_floating_point() else inputs
    mark(inputs, 0)
    mark(targets, 0)
    torch_xla.sync()

    def step() -> None:  # gradients that are still there at its end would be results, which jax's step does not have
        models.loss(model(inputs).float(), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()

    return step


def axis_of(split: Split, shape: Sequence[int], chips: int) -> int | None:
    """The dimension that is shared out. A matrix is seen as jax has it, where that of a linear layer is transposed."""
    if len(shape) != 2:
        return split(shape, chips)
    axis = split(shape[::-1], chips)
    return None if axis is None else 1 - axis


def shard_states(model: nn.Module, optimizer: Optimizer, mark: Callable[[Tensor], None]) -> None:
    """Make the optimizer's state, and shard it like the parameters and buffers."""
    from torch_xla.experimental.distributed_checkpoint import prime_optimizer

    prime_optimizer(optimizer)
    for tensor in (*model.parameters(), *model.buffers(), *values_of(optimizer)):
        if tensor.device.type == "xla":
            mark(tensor)


def values_of(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def llama(chips: int) -> Callable[[], object]:
    """That of examples/train_llama.py: 1B, stacks, remat, bfloat16; 4 texts of 2048 tokens for each chip."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    import train_llama

    import torch_xla
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.distributed_checkpoint import prime_optimizer

    given = f"--preset 1b --mesh 1x{chips}x1 --stack --remat --bf16 --batch_size {4 * chips} --length 2048"
    trainer = train_llama.Trainer(train_llama.parse(given.split()))
    prime_optimizer(trainer.optimizer)
    mesh = xs.Mesh(range(chips), (chips,), ("fsdp",))
    for tensor in (*trainer.model.parameters(), *values_of(trainer.optimizer)):
        if tensor.device.type == "xla":
            axis = axis_of(width(2048), tensor.shape, chips)
            xs.mark_sharding(tensor, mesh, tuple("fsdp" if axis == place else None for place in range(tensor.dim())))
    torch_xla.sync()
    return trainer.train_step


def main() -> None:
    """Compiles the step, and prints what comes of it."""
    place, name = sys.argv[1:]
    target = targets.get_target(place)
    chips = len(target.devices)
    command.emulate_on_cpu(target)
    if chips > 1:
        xr.use_spmd()
    watcher = program_collector.ProgramCollector(target)
    abstract_device.enable(watcher.result_shardings)
    with watcher.collecting():
        step = llama(chips) if name == "Llama-1B" else steps_of(JOBS[name], chips)
        for _ in range(2):
            step()
    last = watcher.programs[-1]
    watcher.compile(last)
    if last.error is not None:
        raise last.error
    row = report_data.program_entry(last, target)
    print(json.dumps({"others": [seen.found is not None for seen in watcher.programs[:-1]], **row}))


if __name__ == "__main__":
    main()
