"""A training step of whole models on xla, next to eager CPU and, for two of them, to hand-written jax.

    python benchmarks/step.py [--quick] [--only GPT] [--device xla:0]

First step: seconds until the first step is done, compiling included. Host: milliseconds until torch_xla.sync() has
returned without waiting, that is until Python is free to prepare the next step. Step: milliseconds until the device is
done. The contestants take turns, step by step, each from an idle device; medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Protocol

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks import jax_models, models
from benchmarks.report import no_garbage_collection, setting, table

WARM_UP = 4  # steps after the first until nothing compiles any more
PAUSE = 0.02  # seconds before each measured step, in which the threads of the contestant before go to sleep


@dataclass(frozen=True)
class Job:
    """A model with its data and optimizer; the same, if any, in jax."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    optimizer: Callable[..., Optimizer]
    in_jax: Callable[[], tuple[jax_models.State, jax_models.Step]] | None = None


MOMENTUM = partial(SGD, lr=0.05, momentum=0.9)
JOBS = [
    Job("MLP-50, AdamW", models.MLP, models.vectors, AdamW),
    Job("LeNet, SGD", models.LeNet, partial(models.images, 64, 1, 28), MOMENTUM, jax_models.lenet),
    Job("ResNet-18, SGD", models.ResNet, partial(models.images, 16, 3, 32), MOMENTUM),
    Job("GPT-6L, AdamW", models.GPT, models.text, AdamW, jax_models.gpt),
]


class Contestant(Protocol):
    """Something that trains one step at a time."""

    def step(self) -> None:
        """Issues one step; the device may still be at work when it returns."""

    def wait(self) -> None:
        """Waits until the device is done."""


class Torch:
    """A job in torch, on any device."""

    def __init__(self, job: Job, device: torch.device) -> None:
        torch.manual_seed(0)
        self.lazy = device.type == "xla"
        self.model = job.model()
        self.initial = self.parameters()
        self.model.to(device)
        self.inputs, self.targets = (tensor.to(device) for tensor in job.batch())
        self.optimizer = job.optimizer(self.model.parameters())
        self.wait()

    def step(self) -> None:
        self.optimizer.zero_grad()
        models.loss(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()
        if self.lazy:
            import torch_xla

            torch_xla.sync()

    def parameters(self) -> Tensor:
        """All parameters as they are now, in one vector on the CPU."""
        return torch.cat([parameter.detach().cpu().flatten() for parameter in self.model.parameters()])

    def wait(self) -> None:
        if self.lazy:
            import torch_xla.core.xla_model as xm

            xm.wait_device_ops()


class Jax:
    """A job in hand-written jax, on jax's default device."""

    def __init__(self, job: Job) -> None:
        assert job.in_jax is not None
        self.state, self.compiled = job.in_jax()
        # Token ids and labels are 64-bit in torch and 32-bit here, as anyone would write it.
        self.inputs, self.targets = (jnp.asarray(tensor.numpy()) for tensor in job.batch())

    def step(self) -> None:
        self.state, self.loss = self.compiled(self.state, self.inputs, self.targets)

    def wait(self) -> None:
        jax.block_until_ready(self.state)


@dataclass
class Times:
    """What was measured of one contestant, in seconds."""

    first: float = 0.0
    host: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)

    def add(self, contestant: Contestant) -> None:
        """Measures one more step."""
        start = time.perf_counter()
        contestant.step()
        host = time.perf_counter()
        contestant.wait()
        self.host.append(host - start)
        self.step.append(time.perf_counter() - start)

    def warm_up(self, contestant: Contestant) -> None:
        """Measures the first step, and makes some more that do not count."""
        self.add(contestant)
        self.first = self.step[0]
        for _ in range(WARM_UP):
            contestant.step()
            contestant.wait()
        self.host, self.step = [], []


def measure(job: Job, device: torch.device, rounds: int) -> list[str]:
    """The row of one job."""
    ours, eager = Torch(job, device), Torch(job, torch.device("cpu"))
    contestants: list[Contestant] = [ours, eager]
    if job.in_jax is not None:
        contestants.append(Jax(job))
    times = [Times() for _ in contestants]
    for contestant, result in zip(contestants, times, strict=True):
        result.warm_up(contestant)
    check_same_training(job, ours, eager)
    with no_garbage_collection():
        for _ in range(rounds):
            for contestant, result in zip(contestants, times, strict=True):
                time.sleep(PAUSE)
                result.add(contestant)
    return row(job.name, *times)


def check_same_training(job: Job, ours: Torch, eager: Torch) -> None:
    """Raises RuntimeError unless both have moved their parameters the same way: a step that does not train is fast.

    The bound is wide: AdamW turns gradients that are nothing but rounding into steps of full size.
    """
    moved = torch.linalg.vector_norm(eager.parameters() - eager.initial)
    apart = torch.linalg.vector_norm(ours.parameters() - eager.parameters())
    if not apart <= 0.25 * moved:  # so that NaN raises, too
        raise RuntimeError(
            f"{job.name}: trained on the CPU, parameters moved by {moved:.3g}; here they end {apart:.3g} off"
        )


def row(name: str, ours: Times, eager: Times, in_jax: Times | None = None) -> list[str]:
    """The cells of one job, in the order of HEAD."""
    host, step, reference = median(ours.host) * 1e3, median(ours.step) * 1e3, median(eager.step) * 1e3
    cells = [name, f"{ours.first:.1f}", f"{host:.2f}", f"{step:.2f}", f"{reference:.2f}", f"{host / reference:.2f}"]
    if in_jax is None:
        return [*cells, "", "", ""]
    jax_host, jax_step = median(in_jax.host) * 1e3, median(in_jax.step) * 1e3
    return [*cells, f"{in_jax.first:.1f}", f"{jax_host:.2f}", f"{jax_step:.2f}"]


HEAD = [
    "training step", "first step, s", "host, ms", "step, ms", "eager CPU step, ms", "host / eager",
    "jax first step, s", "jax host, ms", "jax step, ms",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:0", help="what to compare with eager CPU; cpu shows the noise")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "xla":
        import torch_xla  # noqa: F401
    jobs = [job for job in JOBS if options.only in job.name]
    print(f"{setting()}\n\n{table(HEAD, [measure(job, device, 5 if options.quick else 40) for job in jobs])}")


if __name__ == "__main__":
    main()
